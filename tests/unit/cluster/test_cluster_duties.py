"""What a node decides by itself: whom its view is about, who has joined, what belongs elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infinistore.cluster.node.copying import HotRows
from infinistore.cluster.node.duties import digest, has_joined, stale
from infinistore.cluster.node.rate import Meter
from infinistore.cluster.node.settling import groups_of, is_hot, misplaced, owners
from infinistore.cluster.nodes import Node, View
from infinistore.cluster.placement import Placement
from infinistore.cluster.view import NOTE_NAMESPACE, Note

NODES = [Node(name, "h:1", 1, 7) for name in ("a", "b", "c")]


def test_nodes_agree_on_a_view_by_its_digest() -> None:
    seen = digest(View.of(NODES, 3), {})
    assert seen == digest(View.of(NODES, 9), {"a": Note("a", 7, "up", bytes_per_s=5.0)})
    others = (
        (View.of(NODES[:2]), {}),
        (View.of([*NODES[:2], replace(NODES[2], incarnation=8)]), {}),
        (View.of([*NODES[:2], replace(NODES[2], state="leaving")]), {}),
        (View.of(NODES), {"b": Note("b", 7, "leaving")}),
    )
    found = [digest(view, notes) for view, notes in others]
    assert seen not in found
    assert found[2] != found[3]
    # Who joins changes nothing when it is up.
    joining = View.of([*NODES[:2], replace(NODES[2], state="joining")])
    assert digest(joining, {}) == seen
    listed = View.of([Node("x", "h:1")])  # a list knows no incarnations: the notes do
    assert digest(listed, {"x": Note("x", 1)}) != digest(listed, {"x": Note("x", 2)})


def test_a_node_has_joined_once_all_others_have_walked_for_it() -> None:
    notes = {"a": Note("a", at_version=5), "b": Note("b", at_version=4), "c": Note("c")}
    assert not has_joined("c", 5, notes)
    assert has_joined("c", 5, notes | {"b": Note("b", at_version=5)})
    assert has_joined("c", 5, {"c": Note("c")})


def test_rows_that_others_own_are_found_by_node_and_namespace() -> None:
    rows = [(b"ns", b"{%d}k" % i, 10, 1.0) for i in range(60)]
    rows.append((NOTE_NAMESPACE.encode(), b"view", 4096, 9.0))
    placement = Placement(NODES)
    found = misplaced(rows, placement, "a")
    assert {node.name for node, _ in found} == {"b", "c"}
    assert {space for _, space in found} == {b"ns"}
    away = {row for each in found.values() for row in each}
    owned = placement.first(groups_of([row[1] for row in rows[:60]]))[:, 0]
    assert [row not in away for row in rows[:60]] == [index == 0 for index in owned]
    assert misplaced([], placement, "a") == {}


def test_groups_belong_to_nodes_that_stay() -> None:
    leaving = [replace(node, state="leaving") for node in NODES]
    assert owners([leaving[0], *NODES[1:]]) == NODES[1:]
    assert owners(leaving) == leaving


def test_heat_that_halves_without_an_end_becomes_cold() -> None:
    assert is_hot((b"n", b"k", 1000, 350.0))
    assert not is_hot((b"n", b"k", 1000, 0.1))
    assert not is_hot((b"n", b"k", 1000, 0.0))


def test_namespaces_with_replaced_values_are_found_by_the_names_that_clients_say() -> None:
    held = ["kv", "team-a/kv", "team-a/other", "kv2", "team/kv/deep", ""]
    assert stale(held, frozenset({"kv"})) == ["kv", "team-a/kv"]
    assert stale(held, frozenset({"kv/deep", "gone"})) == ["team/kv/deep"]
    assert stale(held, frozenset()) == []


def test_hot_rows_are_grouped_without_notes() -> None:
    rows = [(b"n", b"{g}1", 10, 1.0), (b"m", b"{g}2", 20, 2.0), (b"n", b"other", 5, 4.0)]
    hot = HotRows([*rows, (NOTE_NAMESPACE.encode(), b"drain", 1, 9.0)])
    (group,) = set(groups_of([b"{g}1"]).tolist())
    assert hot.rows[group] == rows[:2]
    assert (hot.groups[group].rate, hot.groups[group].size) == (3.0, 30)
    assert len(hot.groups) == 2
    assert HotRows([]).groups == {}


def test_a_meter_forgets_by_half_lives() -> None:
    now = [0.0]
    meter = Meter(2.0, clock=lambda: now[0])
    first = meter.rate(1000.0)
    now[0] = 2.0
    assert meter.rate(1000.0) == pytest.approx(first / 2)
    for _ in range(400):  # a steady 100 a second
        now[0] += 0.1
        rate = meter.rate(1000.0 + 100 * (now[0] - 2.0))
    assert rate == pytest.approx(100, rel=0.05)
