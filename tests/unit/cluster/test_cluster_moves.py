"""The order of copies and moves, and nodes that come and go too often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infinistore.cluster.moves import copies_to_drop, copies_to_make, restless

COPIES = st.dictionaries(
    st.integers(0, 5),
    st.lists(st.sampled_from("abcd"), unique=True, max_size=4).map(tuple),
    max_size=6,
)


@given(COPIES, COPIES, st.dictionaries(st.integers(0, 5), st.floats(0, 1e9)))
def test_what_is_wanted_is_made_once_and_what_is_not_is_dropped(
    wanted: dict[int, tuple[str, ...]],
    made: dict[int, tuple[str, ...]],
    rates: dict[int, float],
) -> None:
    def places(copies: dict[int, tuple[str, ...]]) -> set[tuple[int, str]]:
        return {(group, name) for group, names in copies.items() for name in names}

    making = copies_to_make(wanted, made, rates)
    assert len(making) == len(set(making))
    assert set(making) == places(wanted) - places(made)
    assert set(copies_to_drop(wanted, made)) == places(made) - places(wanted)


def test_copies_are_made_where_a_holder_serves_most_of_a_group() -> None:
    wanted = {1: ("a", "b", "c"), 2: ("a", "b")}
    making = copies_to_make(wanted, {2: ("a",)}, {1: 90.0, 2: 90.0})
    assert making == [(1, "a"), (1, "b"), (2, "b"), (1, "c")]


def test_a_node_that_comes_too_often_is_restless_for_a_while() -> None:
    arrivals = {"steady": [0.0], "flapping": [80.0, 90.0, 95.0], "past": [1.0, 2.0, 3.0]}
    found = restless(arrivals, 100.0, count_max=2, window_s=60.0)
    assert found == {"flapping"}
    assert restless(arrivals, 141.0, count_max=2, window_s=60.0) == set()
