"""Targets of the runs on a GPU: what is held against what, and what counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts" / "gpu"))

import gpu_entrants as entrants
import gpu_figures as figures
from gpu_figures import COLD, HIT, Sample, Samples


def sample(name: str, kind: str, tokens: int, ms: float, cached: int | None = None) -> Sample:
    expected = 0 if kind == COLD else tokens - tokens % 16
    return Sample(name, kind, tokens, ms, expected if cached is None else cached, expected)


def run_of(**changes: float) -> list[Sample]:
    """Medians of every entrant; `changes` names one as KIND_ENTRANT."""
    plain = {COLD: 500.0, HIT: 20.0}
    times: dict[str, dict[str, float]] = {
        entrants.PLAIN: dict(plain),
        entrants.PLAIN_1: {COLD: 400.0, HIT: 20.0},
        entrants.OFFLOAD: {COLD: 520.0, HIT: 70.0},
        entrants.ASYNC: {COLD: 505.0, HIT: 68.0},
        entrants.LAYERWISE: {COLD: 404.0, HIT: 45.0},
    }
    for name, ms in changes.items():
        kind, _, entrant = name.partition("_")
        times[entrants.ENTRANTS[entrant].name][kind] = ms
    return [
        sample(name, kind, tokens, ms + spread)
        for tokens in (1024, 16000)
        for spread in (-1, 0, 1)
        for name, kinds in times.items()
        for kind, ms in kinds.items()
    ]


def marks(samples: list[Sample]) -> dict[str, tuple[bool, bool]]:
    return {p.name: (p.is_kept, p.is_counted) for p in figures.promises(Samples(samples))}


COLD_LAYERWISE = "ours, layerwise, 16000 tokens, cold with saving / plain, first runner"
HIT_LAYERWISE = "ours, layerwise, 16000 tokens, hit / OffloadingConnector"


def test_the_faster_load_mode_counts_and_short_prompts_do_not() -> None:
    assert marks(run_of()) == {
        "cold requests were cold, and hits covered all whole blocks": (True, True),
        "ours, async, 16000 tokens, cold with saving / plain": (True, False),
        "ours, async, 16000 tokens, hit / OffloadingConnector": (False, False),
        COLD_LAYERWISE: (True, True),
        HIT_LAYERWISE: (True, True),
    }


def test_a_target_that_is_missed_is_short() -> None:
    assert marks(run_of(cold_layerwise=409.0))[COLD_LAYERWISE] == (False, True)
    assert marks(run_of(hit_offload=49.9))[HIT_LAYERWISE] == (False, True)
    assert marks(run_of(hit_offload=50.0))[HIT_LAYERWISE] == (True, True)


def test_a_hit_that_was_computed_is_no_hit() -> None:
    wrong = [*run_of(), sample(entrants.OFFLOAD, HIT, 16000, 70.0, cached=0)]
    first = figures.promises(Samples(wrong))[0]
    assert not first.is_kept
    assert "OffloadingConnector, hit, 16000 tokens: 0 of 16000 cached" in first.line()


def test_an_engine_may_count_the_block_of_which_it_computes_a_token() -> None:
    assert sample(entrants.OFFLOAD, HIT, 16000, 70.0).is_right
    assert Sample(entrants.OFFLOAD, HIT, 16000, 70.0, 16000, 15984).is_right
    assert not Sample(entrants.OFFLOAD, HIT, 16000, 70.0, 15968, 15984).is_right
    assert not Sample(entrants.OFFLOAD, COLD, 16000, 70.0, 16, 0).is_right


def test_who_waits_for_the_whole_device_more_often_than_plain_is_short() -> None:
    def waits(ours: int) -> list[dict[str, Any]]:
        calls = {"cudaStreamSynchronize": [3, 400.0]}
        return [
            {"engine": entrants.PLAIN_1, "kind": HIT, "calls": calls},
            {
                "engine": entrants.LAYERWISE,
                "kind": HIT,
                "calls": calls | {"cudaDeviceSynchronize": [ours, 1.0]},
            },
        ]

    for ours, is_kept in ((0, True), (1, False)):
        last = figures.promises(Samples(run_of()), waits(ours))[-1]
        assert (last.name, last.is_kept) == (
            "ours, layerwise, hit, calls that wait for the whole device",
            is_kept,
        )
    assert "cudaStreamSynchronize 3 (400.0 ms)" in figures.what_waits(waits(1))[0]


def test_nothing_is_promised_against_engines_that_did_not_run() -> None:
    alone = [sample(entrants.ASYNC, HIT, 16000, 60.0)]
    assert len(marks(alone)) == 1


def test_the_table_has_a_line_for_each_size_and_engine() -> None:
    table: Any = figures.markdown(Samples(run_of()), "about").splitlines()
    assert "| 16,000 | ours, layerwise | 404.0 (403.0-405.0) | 45.0 (44.0-46.0) |" in table
    assert sum(line.startswith(("| 1,024", "| 16,000")) for line in table) == 10
