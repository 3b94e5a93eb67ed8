"""Routes: whom to ask, while nodes come, go, hang and have copies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinistore.cluster.member import Breaker, Member
from infinistore.cluster.nodes import Node, State
from infinistore.cluster.placement import group_id, order
from infinistore.cluster.routes import NOBODY, Routes, Standing, choose_of_two, untried

IDS = np.random.default_rng(3).integers(0, 2**64, 300, dtype=np.uint64)


def standing(index: int, state: State = "up", up: bool = True, young: bool = False) -> Standing:
    return Standing(Node(f"n{index}", "h:1", state=state), 100 + index, up, young)


def first_of(standings: Sequence[Standing], group: int) -> list[int]:
    numbers = {s.node.name: s.number for s in standings}
    return [numbers[node.name] for node in order(group, [s.node for s in standings])]


def test_while_all_is_well_the_owner_is_asked_and_nobody_else() -> None:
    nodes = [standing(index) for index in range(4)]
    routes = Routes(nodes, {})
    for row, group in zip(routes.readers(IDS).tolist(), IDS.tolist(), strict=True):
        assert row == first_of(nodes, group)[:1]
    assert (routes.writers(IDS)[:, :1] == routes.readers(IDS)).all()
    assert sorted(routes.everyone.tolist()) == [100, 101, 102, 103]


def test_while_a_node_is_away_the_next_in_the_order_acts() -> None:
    nodes = [standing(0), standing(1, up=False), standing(2)]
    routes = Routes(nodes, {})
    for write, read, group in zip(
        routes.writers(IDS), routes.readers(IDS), IDS.tolist(), strict=True
    ):
        expected = [number for number in first_of(nodes, group) if number != 101]
        assert write.tolist() == expected[:2]
        assert read.tolist() == expected[:1]


def test_if_nobody_answers_all_are_asked() -> None:
    nodes = [standing(index, up=False) for index in range(3)]
    assert (
        Routes(nodes, {}).readers(IDS) == Routes([standing(i) for i in range(3)], {}).readers(IDS)
    ).all()


@pytest.mark.parametrize("how", ["joining", "young"])
def test_what_a_new_node_lacks_is_looked_for_where_it_was_before(how: str) -> None:
    new = standing(2, state="joining") if how == "joining" else standing(2, young=True)
    old = [standing(0), standing(1)]
    routes = Routes([*old, new], {})
    for read, write, group in zip(
        routes.readers(IDS).tolist(), routes.writers(IDS).tolist(), IDS.tolist(), strict=True
    ):
        assert read == [first_of([*old, new], group)[0], first_of(old, group)[0]]
        assert write[0] == read[0]


def test_copies_whose_owner_is_gone_are_asked_before_who_owns_the_group_now() -> None:
    nodes = [standing(0), standing(1), standing(2)]
    group = int(IDS[0])
    owner, *_, last = first_of(nodes, group)
    holder = next(s.node.name for s in nodes if s.number == last)
    for choose in (None, lambda numbers: numbers[0]):
        ids = IDS[:1]
        routes = Routes(nodes, {group: [holder]})
        assert routes.readers(ids, choose)[0].tolist()[0] == owner
        routes = Routes(nodes, {group: [holder]}, orphaned={group})
        assert routes.readers(ids, choose)[0].tolist() == [last, owner]
        assert routes.writers(ids)[0, 0] == owner
        routes = Routes(nodes, {group: ["gone"]}, orphaned={group})
        assert routes.readers(ids, choose)[0].tolist() == [owner]


def test_a_leaving_node_gets_no_writes_and_is_still_read() -> None:
    nodes = [standing(0), standing(1, state="leaving"), standing(2)]
    routes = Routes(nodes, {})
    left = [nodes[0], nodes[2]]
    for read, write, group in zip(
        routes.readers(IDS).tolist(), routes.writers(IDS).tolist(), IDS.tolist(), strict=True
    ):
        assert write == first_of(left, group)
        assert read == [first_of(left, group)[0], first_of(nodes, group)[0]]


def test_copies_are_chosen_and_the_owner_has_the_last_word() -> None:
    nodes = [standing(index) for index in range(4)]
    group = int(IDS[5])
    owner, *others = first_of(nodes, group)
    names = [f"n{number - 100}" for number in others[:2]]
    routes = Routes(nodes, {group: [*names, "gone"]})
    asked: list[Sequence[int]] = []

    def choose(numbers: Sequence[int]) -> int:
        asked.append(numbers)
        return numbers[-1]

    rows = routes.readers(IDS, choose).tolist()
    assert asked == [[owner, *others[:2]]]
    assert rows[5] == [others[1], owner]
    assert all(row[0] == row[1] for index, row in enumerate(rows) if index != 5)  # owners
    # Without a choice, as for leases, the owner.
    assert routes.readers(IDS).tolist()[5] == [owner, owner]
    assert set(routes.holders(IDS[5:6])[0].tolist()) == {owner, *others[:2]}


def test_copies_stand_in_for_an_owner_that_is_away() -> None:
    nodes = [standing(index) for index in range(4)]
    group = int(IDS[5])
    owner, following, copy, _ = first_of(nodes, group)
    away = [s if s.number != owner else standing(owner - 100, up=False) for s in nodes]
    routes = Routes(away, {group: [f"n{copy - 100}"]})
    only = np.array([group], dtype=np.uint64)
    for choose in (None, lambda numbers: numbers[0]):
        assert routes.readers(only, choose).tolist() == [[copy, following]]
    assert {owner, following, copy} <= set(routes.holders(only)[0].tolist())


def test_replicas_are_written_to_the_first_nodes_and_read_from_any() -> None:
    nodes = [standing(index) for index in range(4)]
    routes = Routes(nodes, {}, replicas=2)
    rows = routes.readers(IDS, lambda numbers: numbers[1]).tolist()
    for row, write, group in zip(rows, routes.writers(IDS).tolist(), IDS.tolist(), strict=True):
        expected = first_of(nodes, group)
        assert write == expected[:3]
        assert row == [expected[1], *expected[:2]]
    alone = Routes(nodes[:1], {}, replicas=2)
    assert alone.writers(IDS[:2]).tolist() == [[100], [100]]


ROWS = st.lists(st.lists(st.sampled_from([NOBODY, 1, 2, 3]), min_size=3, max_size=3), min_size=1)


@given(ROWS, ROWS)
def test_the_next_candidate_is_the_first_that_was_not_tried(
    candidates: list[list[int]], tried: list[list[int]]
) -> None:
    tried = (tried * len(candidates))[: len(candidates)]
    found = untried(np.array(candidates), np.array(tried)).tolist()
    for row, had, number in zip(candidates, tried, found, strict=True):
        fresh = [n for n in row if n != NOBODY and n not in had]
        assert number == (fresh[0] if fresh else NOBODY)


def test_of_two_the_less_loaded_is_taken_the_more_often() -> None:
    chance = random.Random(1)
    loads = {1: 0.0, 2: 0.0, 3: 9e6, 4: 0.0}
    counts = Counter(
        choose_of_two([1, 2, 3, 4], loads.__getitem__, chance.random) for _ in range(20_000)
    )
    assert set(counts) == {1, 2, 3, 4}
    assert counts[3] < 1000  # half of the times that it is one of two, times 3 %
    assert max(counts[n] for n in (1, 2, 4)) < 1.1 * min(counts[n] for n in (1, 2, 4))
    assert choose_of_two([7], loads.__getitem__, chance.random) == 7


def test_a_breaker_opens_at_a_failure_and_closes_at_an_answer() -> None:
    breaker = Breaker()
    assert breaker.failed(sent_at_s=1.0, now_s=1.5)
    assert not breaker.failed(sent_at_s=1.2, now_s=1.5)  # it is open already
    assert not breaker.is_due(1.55)
    assert breaker.is_due(1.6)
    pauses = []
    now_s = 1.6
    for _ in range(8):
        breaker.probed(answers=False, now_s=now_s)
        pauses.append(round(breaker.retry_at_s - now_s, 3))
        now_s = breaker.retry_at_s
    assert pauses == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert breaker.probed(answers=True, now_s=20.0)
    assert not breaker.is_open
    # Something that was sent before the answer tells of the past.
    assert not breaker.failed(sent_at_s=19.0, now_s=20.4)
    assert not breaker.is_open
    assert breaker.failed(sent_at_s=20.1, now_s=20.6)
    assert breaker.retry_at_s == pytest.approx(20.7)


def test_load_is_what_is_on_its_way_and_what_the_node_says() -> None:
    member = Member(Node("a", "h:1"), 0, 0.0)
    member.moves(1000)
    member.moves(-400)
    member.bytes_per_s = 100.0
    assert member.load() == 600 + 5
    assert not member.is_up()
    assert member.is_young(59.0)
    assert not member.is_young(61.0)
    assert group_id(b"x") != group_id(b"y")
