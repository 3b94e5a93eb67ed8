"""Placement: groups by their tags, even shares by weight, and little that moves."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinistore.client.arguments import keys_of
from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import Placement, group_id, group_of, order

BRACES = st.lists(st.sampled_from([b"{", b"}", b"a", b"bc"]), min_size=1).map(b"".join)
MANY = np.random.default_rng(7).integers(0, 2**64, 40_000, dtype=np.uint64)


def nodes(*capacities: int) -> list[Node]:
    return [Node(f"node-{index}", f"h{index}:1", size) for index, size in enumerate(capacities)]


def owners(of: list[Node]) -> list[str]:
    return [of[index].name for index in Placement(of).first(MANY)[:, 0]]


@pytest.mark.parametrize(
    ("key", "group"),
    [
        (b"plain", b"plain"),
        (b"{tag}rest", b"tag"),
        (b"a{tag}b{other}", b"tag"),
        (b"{}x", b"{}x"),  # empty: the whole key
        (b"{}{x}", b"{}{x}"),  # only the first brace counts
        (b"{open", b"{open"),
        (b"}{x}", b"x"),
        (b"{{x}}", b"{x"),
        (b"x}", b"x}"),
        (b"{\x00\xff}", b"\x00\xff"),
    ],
)
def test_a_group_is_what_redis_would_take(key: bytes, group: bytes) -> None:
    assert group_of(key) == group


def test_ids_and_orders_never_change() -> None:
    """They are in every client and node of a cluster, of whatever version."""
    assert group_id(b"") == 0x1FF5C2923A788D2C
    assert group_id(b"tag") == 0xE4D320F2241CEA22
    assert group_id(bytes(range(255))) == 0x926A64AC76A48C25
    for of in (nodes(0, 0, 0, 0), nodes(1, 2, 3, 4)):
        names = [node.name for node in order(group_id(b"tag"), of)]
        assert names == ["node-0", "node-1", "node-3", "node-2"]


def test_another_process_agrees() -> None:
    code = (
        "from infinistore.cluster.nodes import Node; "
        "from infinistore.cluster.placement import order, group_id; "
        "nodes = [Node(f'node-{i}', 'h:1', i) for i in range(9)]; "
        "print([n.name for n in order(group_id(b'some group'), nodes)])"
    )
    here = [n.name for n in order(group_id(b"some group"), nodes(*range(9)))]
    for seed in ("0", "1"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == str(here)


@pytest.mark.parametrize("capacities", [(0,) * 5, (1, 1, 2, 4), (3, 0, 5), (10**12, 10**9)])
def test_shares_follow_the_weights(capacities: tuple[int, ...]) -> None:
    of = nodes(*capacities)
    known = [size for size in capacities if size]
    weights = [size or (sum(known) / len(known) if known else 1) for size in capacities]
    counts = np.bincount(Placement(of).first(MANY)[:, 0], minlength=len(of))
    for count, weight in zip(counts, weights, strict=True):
        share = weight / sum(weights)
        deviation = (len(MANY) * share * (1 - share)) ** 0.5
        assert abs(count - len(MANY) * share) < 5 * deviation


def test_a_node_that_goes_moves_its_own_groups_only() -> None:
    for of in (nodes(0, 0, 0, 0, 0), nodes(1, 2, 3, 4, 5)):
        before, after = owners(of), owners(of[:2] + of[3:])
        moved = [old for old, new in zip(before, after, strict=True) if old != new]
        assert set(moved) == {"node-2"}
        assert len(moved) == before.count("node-2")


def test_where_groups_move_is_their_next_node() -> None:
    of = nodes(1, 2, 3, 4)
    ranks = Placement(of).first(MANY, 2)
    left = [node for node in of if node.name != "node-1"]
    after = owners(left)
    for (owner, following), new in zip(ranks, after, strict=True):
        assert new == of[following if owner == 1 else owner].name


def test_a_node_that_grows_only_gains() -> None:
    before, after = owners(nodes(1, 1, 1)), owners(nodes(1, 3, 1))
    gained = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(gained) == {"node-1"}


@given(st.integers(0, 2**64 - 1), st.integers(1, 30), st.booleans())
def test_many_groups_at_once_are_as_each_alone(group: int, count: int, has_weights: bool) -> None:
    of = nodes(*(range(1, count + 1) if has_weights else [0] * count))
    whole = order(group, of)
    assert sorted(whole) == sorted(of)
    ids = np.array([group, group ^ 1, group], dtype=np.uint64)
    for first in (1, 2, count, count + 5):
        found = Placement(of).first(ids, first)
        assert found.shape == (3, min(first, count))
        assert [of[index] for index in found[0]] == whole[:first]
        assert (found[0] == found[2]).all()


def test_a_large_batch_on_many_nodes_is_cut_and_joined() -> None:
    placement = Placement(nodes(*[0] * 600))
    ids = np.concatenate([MANY[:3000], MANY[:3000]])
    found = placement.first(ids, 2)
    assert (found[:3000] == found[3000:]).all()
    for index in (0, 1, 2999):
        assert (found[index] == placement.first(ids[index : index + 1], 2)[0]).all()


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=255), BRACES), max_size=20))
def test_the_native_client_knows_the_same_groups(keys: list[bytes]) -> None:
    ids = np.frombuffer(keys_of(keys).groups(), dtype=np.uint64)
    assert ids.tolist() == [group_id(group_of(key)) for key in keys]


@given(st.binary(max_size=255), st.binary(max_size=255))
def test_other_groups_have_other_ids(one: bytes, other: bytes) -> None:
    assert (group_id(one) == group_id(other)) == (one == other)
