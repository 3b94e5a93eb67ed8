"""Targets beside peers: ahead of each on its kind of transport, of some by a factor."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from infinistore.bench.checks.line import Line, ahead, not_measured
from infinistore.bench.checks.scope import MIB, Scope
from infinistore.bench.child import Fleet, Recipe
from infinistore.bench.figures import (
    MOVES,
    Case,
    Figure,
    Verb,
    batch_p99,
    latency,
    rate,
    ratios,
)
from infinistore.bench.peers.table import PEERS, Peer, started
from infinistore.bench.report import show
from infinistore.bench.rounds import CaseResult, measure
from infinistore.bench.run import POOL_SHARE, POOL_SLACK
from infinistore.bench.store import BenchServer
from infinistore.units import format_bytes

KIB = 1024
# 16 batches of 4 MiB a pass: beyond the caches, and enough for a p99 to be more than one value.
# Each is run twice: for throughput with as many batches under way as the contender's API allows,
# and for the time of each with one.
CASES = (
    Case(4 * KIB, 16_000, 1_000),
    Case(64 * KIB, 1_024, 64),
    Case(MIB, 64, 4),
)
WARM_UPS = 1
# Factors in throughput by the peer's package, transport and block size; elsewhere ahead is enough.
FACTORS: dict[tuple[str, str, int], float] = {
    ("mooncake", "tcp", 4 * KIB): 10.0,
    ("mooncake", "tcp", 64 * KIB): 3.0,
    ("redis", "tcp", 4 * KIB): 3.0,
    ("redis", "tcp", 64 * KIB): 3.0,
    ("nixl", "shm", 4 * KIB): 2.5,
    ("nixl", "shm", 64 * KIB): 2.5,
    ("nixl", "shm", MIB): 2.5,
}


def find(scope: Scope) -> list[Line]:
    """Two lines, throughput and p99 of batches, for each peer, verb and size."""
    options = scope.options
    peers = [peer for peer in PEERS if peer.transport in options.transports]
    cases = [case for case in CASES if case.block_bytes in options.block_sizes]
    if not cases:
        return []
    arena_bytes = max(case.pass_bytes for case in cases)
    lines = []
    with contextlib.ExitStack() as cleanup:
        server = BenchServer(POOL_SHARE * arena_bytes + POOL_SLACK)
        cleanup.callback(server.close)
        fleets = {}
        for transport in options.transports:
            fleets[transport] = ours(scope, server, transport, arena_bytes)
            cleanup.callback(fleets[transport].close)
        for peer in peers:
            lines += beside(scope, peer, fleets[peer.transport], cases)
    return lines


def beside(scope: Scope, peer: Peer, mine: Fleet, cases: Sequence[Case]) -> list[Line]:
    """Ours and one peer in turns and nobody else, so that a ratio is of direct neighbours.

    A peer that does not run has a single line, which is short.
    """
    arena_bytes, seed = max(case.pass_bytes for case in cases), scope.options.seed
    with started([peer], scope.peers, scope.logs, arena_bytes, seed, scope.on_step) as running:
        if peer.name in running.missing:
            return [not_measured(f"beside {peer.name}", running.missing[peer.name], "ahead")]
        pair = [running.fleets[peer.name], mine]
        return [
            line
            for case in cases
            for line in lines_of(
                peer,
                measure(case, pair, scope.rounds, WARM_UPS, seed=seed),
                measure(replace(case, waits=True), pair, scope.rounds, WARM_UPS, seed=seed),
            )
        ]


def ours(scope: Scope, server: BenchServer, transport: str, arena_bytes: int) -> Fleet:
    """One client of ours in a process of its own."""
    arguments = {"url": server.url, "transport": transport}
    recipe = Recipe(
        "infinistore.bench.store:StoreContender", arena_bytes, scope.options.seed, arguments
    )
    fleet = Fleet(transport, [recipe], scope.logs / "ours.log", far_pids=(server.pid,))
    if transport == "shm":
        fleet.touch(POOL_SHARE * arena_bytes)
    return fleet


def lines_of(peer: Peer, together: CaseResult, singly: CaseResult) -> list[Line]:
    """For each verb throughput, then p99 of batches."""
    return [
        line(peer, result, verb)
        for verb in MOVES
        for line, result in ((throughput_line, together), (p99_line, singly))
    ]


def throughput_line(peer: Peer, result: CaseResult, verb: Verb) -> Line:
    case = result.case
    mine, theirs = (result.samples[name, verb] for name in (peer.transport, peer.name))
    factor = FACTORS.get((peer.package, peer.transport, case.block_bytes), 1.0)
    ratio, target, is_ok = ahead(Figure.interval_of(ratios(mine, theirs)), factor)
    return Line(
        f"{peer.transport} {verb} {format_bytes(case.block_bytes)}",
        f"{show(rate(case, mine))} GB/s",
        f"{show(rate(case, theirs))} GB/s {peer.name}",
        ratio,
        target,
        is_ok,
    )


def p99_line(peer: Peer, result: CaseResult, verb: Verb) -> Line:
    case = result.case
    mine, theirs = (result.samples[name, verb] for name in (peer.transport, peer.name))
    ratio, target, is_ok = ahead(Figure.interval_of(ratios(mine, theirs, batch_p99)), 1.0)
    return Line(
        f"{peer.transport} {verb} {format_bytes(case.block_bytes)}, p99 of {case.batch_blocks}",
        f"{latency(mine, 0.99).median * 1e3:.2f} ms",
        f"{latency(theirs, 0.99).median * 1e3:.2f} ms {peer.name}",
        ratio,
        target,
        is_ok,
    )
