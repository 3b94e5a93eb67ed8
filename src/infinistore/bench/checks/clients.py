"""Targets of many clients: together they move at least nine tenths of what one moves."""

from __future__ import annotations

import contextlib

from infinistore.bench.checks.line import Line, at_least
from infinistore.bench.checks.scope import MIB, Scope
from infinistore.bench.child import Fleet, Recipe
from infinistore.bench.figures import MOVES, Case, Figure, Verb, rate, ratio
from infinistore.bench.report import show
from infinistore.bench.rounds import CaseResult, measure
from infinistore.bench.run import POOL_SHARE, POOL_SLACK
from infinistore.bench.store import BenchServer

KIB = 1024
COUNTS = (2, 4, 8)
TARGET = 0.9
WARM_UPS = 1
# Of all clients together, whatever their number, so that the machine's caches see the same.
PASS_BYTES = 256 * MIB
BLOCK_BYTES = 64 * KIB
BATCH_BLOCKS = 256


def find(scope: Scope) -> list[Line]:
    """A line for each transport, verb and number of clients."""
    if BLOCK_BYTES not in scope.options.block_sizes:
        return []
    lines = []
    with contextlib.ExitStack() as cleanup:
        server = BenchServer(POOL_SHARE * PASS_BYTES + POOL_SLACK)
        cleanup.callback(server.close)
        for transport in scope.options.transports:
            scope.on_step(f"1 to {max(COUNTS)} clients, {transport}")
            results = measure_counts(scope, server, transport)
            lines += [
                line_of(results, transport, count, verb) for count in COUNTS for verb in MOVES
            ]
    return lines


def measure_counts(scope: Scope, server: BenchServer, transport: str) -> CaseResult:
    """Fleets of 1 and of COUNTS clients in turns, each moving the same bytes in all."""
    with contextlib.ExitStack() as cleanup:
        fleets = []
        for count in (1, *COUNTS):
            fleets.append(fleet_of(scope, server, transport, count))
            cleanup.callback(fleets[-1].close)
        case = Case(BLOCK_BYTES, PASS_BYTES // BLOCK_BYTES, BATCH_BLOCKS)
        return measure(case, fleets, scope.rounds, WARM_UPS, seed=scope.options.seed)


def fleet_of(scope: Scope, server: BenchServer, transport: str, count: int) -> Fleet:
    """So many clients, each in a process of its own with its share of the memory."""
    arguments = {"url": server.url, "transport": transport}
    recipe = Recipe(
        "infinistore.bench.store:StoreContender", PASS_BYTES // count, scope.options.seed, arguments
    )
    log = scope.logs / f"clients-{count}.log"
    fleet = Fleet(str(count), [recipe] * count, log, far_pids=(server.pid,))
    if transport == "shm":
        fleet.touch(POOL_SHARE * PASS_BYTES)
    return fleet


def line_of(results: CaseResult, transport: str, count: int, verb: Verb) -> Line:
    """All clients together beside one."""
    many, one = results.samples[str(count), verb], results.samples["1", verb]
    share: Figure = ratio(many, one)
    shown, target, is_ok = at_least(share, TARGET)
    return Line(
        f"{transport} {verb} {BLOCK_BYTES // KIB}KiB, {count} clients",
        f"{show(rate(results.case, many))} GB/s",
        f"{show(rate(results.case, one))} GB/s 1 client",
        shown,
        target,
        is_ok,
    )
