"""How far the hit rates by pool size that a store samples are from the truth, on all traces.

    python benchmarks/what_if.py [--seeds 20]

A store of one size replays a trace and says what pools of other sizes would have had; the truth is
a replay in a store of each size. A seed gives every block another name, and so another sample.
Exits with 1 if an error is above two points.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from infinistore import _native
from infinistore.bench.trace.prompts import Trace, read_trace
from infinistore.bench.trace.replay import BLOCK_BYTES, SHARD_COUNT, replay_store

TRACES = Path(__file__).parent / "traces"
FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)  # of the trace's distinct blocks
LIVE = (0.1, 0.3)  # the size of the store that is asked
POINTS_MAX = 2.0


def told(trace: Trace, live: float, seed: int) -> list[float | None]:
    """What a store of `live` says of pools of FRACTIONS; None beyond what it knows."""
    capacity = trace.capacity(live) * BLOCK_BYTES
    store = _native.TraceStore(capacity, "lru", SHARD_COUNT)
    for prompt in trace.prompts:
        store.prompt([block + (seed << 40) for block in prompt], BLOCK_BYTES)
    sizes = [trace.capacity(fraction) * BLOCK_BYTES for fraction in FRACTIONS]
    rates = store.hit_rates(sizes)
    return [r if size <= 8 * capacity else None for r, size in zip(rates, sizes, strict=True)]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=20)
    seeds = range(arguments.parse_args().seeds)
    worst = 0.0
    for path in sorted(TRACES.glob("*.jsonl.gz")):
        trace = read_trace(path)
        truth = [
            replay_store(trace, trace.capacity(fraction), "lru") / trace.block_count
            for fraction in FRACTIONS
        ]
        curves = [told(trace, live, seed) for live in LIVE for seed in seeds]
        print(f"{trace.name}: {trace.block_count:,} blocks, {trace.distinct_count:,} distinct")
        for index, fraction in enumerate(FRACTIONS):
            errors = [
                100 * (rate - truth[index])
                for curve in curves
                if (rate := curve[index]) is not None
            ]
            worst = max(worst, *map(abs, errors))
            print(
                f"  a pool of {fraction:4.0%} of them: {100 * truth[index]:5.2f} % in truth, "
                f"errors of {len(errors)} samples {min(errors):+.2f} to {max(errors):+.2f} points"
            )
    print(f"what-if: {'ok' if worst <= POINTS_MAX else 'short'}: at most {worst:.2f} points off")
    return 0 if worst <= POINTS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
