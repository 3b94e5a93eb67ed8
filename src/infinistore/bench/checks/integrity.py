"""The cost of verification: reading with it keeps at least 95 % of what reading without reaches."""

from __future__ import annotations

import contextlib

from infinistore.bench.checks.line import Line, at_least
from infinistore.bench.checks.scope import MIB, Scope
from infinistore.bench.child import Fleet, Recipe
from infinistore.bench.figures import Case, rate, ratio
from infinistore.bench.report import show
from infinistore.bench.rounds import CaseResult, measure
from infinistore.bench.run import POOL_SHARE, POOL_SLACK
from infinistore.bench.store import BenchServer
from infinistore.units import format_bytes

KIB = 1024
SIZES = (64 * KIB, 256 * KIB, MIB)
TARGET = 0.95
WARM_UPS = 1
PASS_BYTES = 256 * MIB  # beyond the caches of most machines
BATCH_BYTES = 16 * MIB
# A round's ratio of two neighbours lies in +-10 % on a busy machine: its median needs more of them.
ROUNDS_FACTOR = 2
ON, OFF = "verify on", "verify off"


def find(scope: Scope) -> list[Line]:
    """A line for each transport and size."""
    sizes = scope.sizes(*SIZES)
    lines = []
    with contextlib.ExitStack() as cleanup:
        server = BenchServer(POOL_SHARE * PASS_BYTES + POOL_SLACK)
        cleanup.callback(server.close)
        for transport in scope.options.transports if sizes else ():
            with contextlib.ExitStack() as pair:
                fleets = []
                for verifies in (True, False):
                    fleets.append(fleet_of(scope, server, transport, verifies))
                    pair.callback(fleets[-1].close)
                for size in sizes:
                    scope.on_step(f"verification, {transport}, blocks of {format_bytes(size)}")
                    case = Case(size, PASS_BYTES // size, BATCH_BYTES // size)
                    rounds = ROUNDS_FACTOR * scope.rounds
                    result = measure(case, fleets, rounds, WARM_UPS, seed=scope.options.seed)
                    lines.append(line_of(result, transport))
    return lines


def fleet_of(scope: Scope, server: BenchServer, transport: str, verifies: bool) -> Fleet:
    """One client, in a process of its own."""
    arguments = {"url": server.url, "transport": transport, "verify": verifies}
    recipe = Recipe(
        "infinistore.bench.store:StoreContender", PASS_BYTES, scope.options.seed, arguments
    )
    name = ON if verifies else OFF
    fleet = Fleet(name, [recipe], scope.logs / "integrity.log", far_pids=(server.pid,))
    if transport == "shm":
        fleet.touch(POOL_SHARE * PASS_BYTES)
    return fleet


def line_of(result: CaseResult, transport: str) -> Line:
    """Reads with verification beside reads without."""
    on, off = (result.samples[name, "read"] for name in (ON, OFF))
    shown, target, is_ok = at_least(ratio(on, off), TARGET)
    return Line(
        f"{transport} read {format_bytes(result.case.block_bytes)}, verified",
        f"{show(rate(result.case, on))} GB/s",
        f"{show(rate(result.case, off))} GB/s verify off",
        shown,
        target,
        is_ok,
    )
