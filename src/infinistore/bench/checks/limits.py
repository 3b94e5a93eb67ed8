"""Targets beside the machine's limits: copies for shared memory, two plain sockets for TCP."""

from __future__ import annotations

import dataclasses

from infinistore.bench.checks.line import Line, at_least
from infinistore.bench.checks.scope import MIB, Scope
from infinistore.bench.figures import Case
from infinistore.bench.memory import Arena
from infinistore.bench.report import Row, make_rows, show
from infinistore.bench.rounds import measure
from infinistore.bench.run import LIMITS, entrants
from infinistore.units import format_bytes

KIB = 1024
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB)
SMALL_BATCH_BLOCKS = 1000
BATCH_BYTES = 64 * MIB
WARM_UPS = 1


def find(scope: Scope) -> list[Line]:
    """A line for each transport, verb and size."""
    options = dataclasses.replace(scope.options, block_sizes=scope.sizes(*SIZES))
    cases = [limit_case(size, options.working_set) for size in options.block_sizes]
    if not cases:
        return []
    results = []
    arena = Arena(max(case.pass_bytes for case in cases), options.seed)
    with entrants(options, arena, scope.on_step) as taking_part:
        for case in cases:
            scope.on_step(f"limits, blocks of {format_bytes(case.block_bytes)}")
            results.append(measure(case, taking_part, scope.rounds, WARM_UPS, seed=options.seed))
    rows = make_rows(results, options.transports, LIMITS)
    return [line_of(row, row.target) for row in rows if row.target is not None]


def limit_case(block_bytes: int, working_set: int) -> Case:
    """All of the working set; blocks of 4 KiB in batches of 1,000."""
    count = max(1, working_set // block_bytes)
    batch = min(SMALL_BATCH_BLOCKS, max(1, BATCH_BYTES // block_bytes))
    return Case(block_bytes, count, min(count, batch))


def line_of(row: Row, target: float) -> Line:
    """Ours beside the best limit of the transport."""
    shown, wanted, is_ok = at_least(row.ratio, target)
    ours, limit = show(row.rate_gb_s), show(row.limit_gb_s)
    return Line(row.name, f"{ours} GB/s", f"{limit} GB/s {row.limit}", shown, wanted, is_ok)
