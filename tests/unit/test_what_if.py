"""The hit rates by pool size that a store samples, beside the truth, on the recorded traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from infinistore import _native
from infinistore.bench.trace.prompts import read_trace
from infinistore.bench.trace.replay import BLOCK_BYTES, SHARD_COUNT, replay_store

TRACES = sorted((Path(__file__).parents[2] / "benchmarks/traces").glob("*.jsonl.gz"))
FRACTIONS = (0.05, 0.1, 0.3, 0.8)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_what_if_is_within_two_points_of_the_truth(path: Path) -> None:
    trace = read_trace(path)
    store = _native.TraceStore(trace.capacity(0.1) * BLOCK_BYTES, "lru", SHARD_COUNT)
    for prompt in trace.prompts:
        store.prompt(prompt, BLOCK_BYTES)
    sizes = [trace.capacity(fraction) for fraction in FRACTIONS]
    told = store.hit_rates([size * BLOCK_BYTES for size in sizes])
    for size, rate in zip(sizes, told, strict=True):
        truth = replay_store(trace, size, "lru") / trace.block_count
        print(f"{size} blocks: {rate:.4f} told, {truth:.4f} in truth")
        assert abs(rate - truth) < 0.02
    assert len(set(told)) == len(told), "a curve, not one number"


def test_there_are_three_traces() -> None:
    assert len(TRACES) == 3
