"""Choosing an upstream, on plain values."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from infinistore.router import choice
from infinistore.router.choice import BackOff, Health, Load, Standing

DOWN = Health(standing=Standing.DOWN, failures=1, retry_at_s=10.0)
BACK_OFF = BackOff(min_s=0.5, max_s=30.0)


def test_the_fewest_requests_in_flight_win():
    loads = [Load(Health(), 2, 1), Load(Health(), 1, 2), Load(Health(), 3, 0)]
    assert choice.choose(loads) == 1


def test_equal_loads_take_turns():
    turns = [0, 0, 0]
    order = []
    for turn in range(1, 7):
        index = choice.choose([Load(Health(), 0, last) for last in turns])
        assert index is not None
        turns[index] = turn
        order.append(index)
    assert order == [0, 1, 2, 0, 1, 2]


def test_a_shared_prefix_wins_within_the_slack():
    def chosen(shared: int, ahead: int, slack: int) -> int | None:
        loads = [Load(Health(), 1, 1), Load(Health(), 1 + ahead, 2, shared)]
        return choice.choose(loads, prefix_slack=slack)

    assert chosen(shared=1, ahead=0, slack=0) == 1
    assert chosen(shared=1, ahead=4, slack=4) == 1
    assert chosen(shared=9, ahead=5, slack=4) == 0
    assert chosen(shared=0, ahead=1, slack=4) == 0
    most = [Load(Health(), 0, 0, 2), Load(Health(), 0, 0, 7), Load(DOWN, 0, 0, 9)]
    assert choice.choose(most, prefix_slack=4) == 1


def test_down_and_excluded_ones_are_passed_over():
    loads = [Load(DOWN, 0, 0), Load(Health(), 5, 1), Load(Health(), 9, 2)]
    assert choice.choose(loads) == 1
    assert choice.choose(loads, excluded=[1]) == 2
    assert choice.choose(loads, excluded=[1, 2]) is None


def test_a_long_shot_is_taken_only_when_none_is_up():
    loads = [Load(DOWN, 0, 0), Load(Health(), 5, 1)]
    assert choice.choose(loads, even_down=True) == 1
    assert choice.choose(loads, excluded=[1], even_down=True) == 0
    assert choice.choose(loads, excluded=[0, 1], even_down=True) is None
    assert choice.choose([], even_down=True) is None


def test_failures_double_the_wait_up_to_its_bound():
    health, waits = Health(), []
    for _ in range(9):
        health = choice.failed(health, 100.0, BACK_OFF)
        assert health.standing is Standing.DOWN
        waits.append(health.retry_at_s - 100.0)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert BACK_OFF.after(10_000) == 30.0


def test_a_good_probe_brings_it_back_but_only_a_request_forgives():
    health = choice.failed(choice.failed(Health(), 0.0, BACK_OFF), 0.0, BACK_OFF)
    back = choice.probed(health, answered=True)
    assert back is not None
    assert back.standing is Standing.UP
    assert choice.failed(back, 0.0, BACK_OFF).retry_at_s == 2.0  # the third failure in a row
    assert choice.failed(choice.worked(back), 0.0, BACK_OFF).retry_at_s == 0.5


def test_one_missed_probe_is_borne_two_are_a_failure():
    once = choice.probed(Health(), answered=False)
    assert once is not None
    assert once.standing is Standing.UP
    assert choice.probed(once, answered=False) is None
    recovered = choice.probed(once, answered=True)
    assert recovered is not None
    assert choice.probed(recovered, answered=False) is not None


def test_a_missed_probe_of_a_down_one_is_a_failure():
    assert choice.probed(DOWN, answered=False) is None


def test_a_down_one_is_probed_when_its_back_off_has_passed():
    assert not choice.is_probe_due(DOWN, 9.9)
    assert choice.is_probe_due(DOWN, 10.0)
    assert choice.is_probe_due(Health(), 0.0)


LOADS = st.lists(
    st.builds(
        Load,
        st.sampled_from([Health(), DOWN]),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=6,
)


@given(LOADS, st.sets(st.integers(0, 5)), st.booleans())
def test_no_better_one_is_left_behind(loads, excluded, even_down):
    index = choice.choose(loads, excluded=excluded, even_down=even_down)
    others = [load for i, load in enumerate(loads) if i not in excluded]
    up = [load for load in others if load.health.standing is Standing.UP]
    if index is None:
        assert not up
        assert not (even_down and others)
        return
    chosen = loads[index]
    assert index not in excluded
    assert chosen in up or (even_down and not up)
    assert chosen.in_flight == min(load.in_flight for load in up or others)


def test_records_are_values():
    assert dataclasses.replace(DOWN) == DOWN
    assert choice.worked(Health()) == Health()
