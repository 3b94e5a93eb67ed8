"""When `make proof-cpu` says that the connector takes too much."""

from __future__ import annotations

import random
import statistics

import pytest
from connector_figures import Cold, Warm, cold_facts, cold_lines, interval, warm_lines


def cold(added_s: float, ours_s: float, without_s: float = 2.0, plain_s: float = 2.0) -> Cold:
    return Cold(515, plain_s, without_s, ours_s, added_s, server_s=0.003)


def warm(wait_s: float, ttft_s: float = 0.1, own_s: float = 0.09) -> Warm:
    return Warm(515, ttft_s, wait_s / 3, 2 * wait_s / 3, own_s, server_s=0.001)


def test_an_interval_has_the_ranks_of_the_sign_test() -> None:
    assert interval(range(15)) == (3, 11)  # 2 * (1 + 15 + 105 + 455) / 2**15 = 3.5 %
    assert interval(range(20)) == (5, 14)
    assert interval([2.0, 1.0, 3.0]) == (1.0, 3.0)  # too few to leave any out
    assert interval([1.0]) == (1.0, 1.0)


def test_an_interval_holds_the_median_as_often_as_it_says() -> None:
    dice = random.Random(5)
    held = 0
    for _ in range(2000):
        low, high = interval([dice.gauss(0, 1) for _ in range(15)])
        held += low <= 0 <= high
    assert 0.95 <= held / 2000 < 0.985


@pytest.mark.parametrize(("added_s", "ok"), [(0.009, True), (0.021, False)])
def test_what_can_be_counted_must_stay_within_a_percent(added_s: float, ok: bool) -> None:
    counted, _ = cold_lines([cold(added_s, 2.0)] * 15)
    assert counted.ok is ok
    assert counted.ratio == pytest.approx(1 + added_s / 2)


def test_pairs_that_show_more_than_a_percent_are_short_whatever_was_counted() -> None:
    rows = [cold(0.001, 2.0 * (1.03 + 0.001 * number)) for number in range(15)]
    counted, pairs = cold_lines(rows)
    assert counted.ok
    assert not pairs.ok
    assert pairs.ratio == pytest.approx(1.037)
    assert str(pairs).endswith("target 1.01  short")


def test_pairs_that_scatter_around_nothing_are_no_proof_against_it() -> None:
    rows = [cold(0.001, 2.0 * (1 + 0.02 * (number - 7))) for number in range(15)]
    assert cold_lines(rows)[1].ok


def test_the_other_process_is_told_and_decides_nothing() -> None:
    rows = [cold(0.001, 2.0, plain_s=1.6)] * 15
    assert all(line.ok for line in cold_lines(rows))
    over_plain, control, server = cold_facts(rows)
    assert "+25.00%" in over_plain
    assert "+25.00%" in control
    assert "3.0 ms" in server
    assert "4.0 ms = 0.20%" in server


@pytest.mark.parametrize(("wait_s", "ok"), [(0.01, True), (0.06, False)])
def test_a_hit_that_waits_longer_than_it_computes_is_short(wait_s: float, ok: bool) -> None:
    share, ratio = warm_lines([warm(wait_s)] * 5)
    assert share.ok is ok
    assert share.ratio == pytest.approx(wait_s / 0.1)
    assert ratio.ok


def test_a_hit_of_twice_the_time_of_the_engines_own_is_short() -> None:
    rows = [warm(0.01, own_s=own_s) for own_s in (0.04, 0.045, 0.09)]
    _, ratio = warm_lines(rows)
    assert ratio.ratio == pytest.approx(statistics.median([2.5, 0.1 / 0.045, 0.1 / 0.09]))
    assert not ratio.ok
