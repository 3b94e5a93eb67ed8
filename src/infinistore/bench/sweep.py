"""The sweep: block sizes, batches, clients, every verb, beside limits and peers.

Three series, each a line through the space of cases rather than all of it, which would take hours:
`batches` has one client and every batch that fits, `clients` several clients at batches of 4 MiB,
`peers` the other stores at the same batches. In each case all that take part do so in turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infinistore.bench.child import Fleet, Recipe
from infinistore.bench.figures import (
    BYTES_A_GB,
    MOVES,
    VERBS,
    Case,
    Figure,
    Sample,
    Verb,
    cpu_cost,
    latency,
)
from infinistore.bench.latency import measure_latencies, round_trip_probes, store_probes
from infinistore.bench.limits import CopyLimit, StreamLimit
from infinistore.bench.memory import Arena, shared_memory
from infinistore.bench.peers.table import PEERS, started
from infinistore.bench.process import apart
from infinistore.bench.rounds import CaseResult, Contender, Entrant, InProcess, measure
from infinistore.bench.run import POOL_SHARE, POOL_SLACK
from infinistore.bench.store import BenchServer, Transport
from infinistore.units import format_bytes

Series = Literal["batches", "clients", "peers"]
KIB, MIB = 1024, 1024**2

SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
BATCHES = (1, 10, 100, 1_000, 10_000)
CLIENTS = (1, 2, 4, 8)
QUICK_SIZES, QUICK_BATCHES, QUICK_CLIENTS = (4 * KIB, 64 * KIB, MIB), (1, 1_000), (1, 4)
# A pass is bounded by bytes and by calls: the one binds large blocks, the other small batches.
PASS_BYTES, PASS_BATCHES = 64 * MIB, 1_000
BATCH_BYTES_MAX = 64 * MIB
# Of the series that do not vary it: as many blocks as 4 MiB hold, 1,000 at most.
USUAL_BATCH_BYTES, USUAL_BATCH_BLOCKS = 4 * MIB, 1_000
# Passes of peers that take 0.1 ms a block are shorter.
PEER_PASS_BLOCKS = 8_000
WARM_UPS = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep measures."""

    sizes: tuple[int, ...] = SIZES
    batches: tuple[int, ...] = BATCHES
    clients: tuple[int, ...] = CLIENTS
    transports: tuple[Transport, ...] = ("shm", "tcp")
    rounds: int = 5
    seed: int = 1
    peers: Path = Path("build/peers")
    budget_s: float = 900.0
    pass_bytes: int = PASS_BYTES


def quick(plan: Plan) -> Plan:
    """A subset that takes a tenth of the time."""
    return dataclasses.replace(
        plan, sizes=QUICK_SIZES, batches=QUICK_BATCHES, clients=QUICK_CLIENTS, rounds=3
    )


@dataclass(frozen=True, slots=True)
class Point:
    """One entrant and verb in one case: figures over the rounds.

    Latencies are of a batch, from its call until it is done, in seconds; None where all batches
    were in flight at once. Verbs that move no bytes have operations only, one a key.
    """

    series: Series
    name: str
    verb: Verb
    block_bytes: int
    batch_blocks: int
    clients: int
    gb_s: Figure | None
    operations_s: Figure
    p50_s: Figure | None
    p99_s: Figure | None
    cpu_client_s_gb: float | None
    cpu_server_s_gb: float | None


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of single call, or a bare round trip: percentiles of each round, over the rounds."""

    name: str
    p50_s: Figure
    p99_s: Figure


@dataclass(frozen=True, slots=True)
class Sweep:
    """All points and calls; peers that did not run, and why; cases without time for them."""

    points: list[Point]
    calls: list[Call]
    missing: dict[str, str]
    left_out: list[str]
    blocks_verified: int


def batch_cases(plan: Plan) -> list[Case]:
    """Every size with every batch that holds no more than BATCH_BYTES_MAX."""
    return [
        sweep_case(size, batch, plan.pass_bytes)
        for size in plan.sizes
        for batch in plan.batches
        if size * batch <= BATCH_BYTES_MAX
    ]


def usual_cases(plan: Plan) -> list[Case]:
    """Every size at its usual batch."""
    return [
        sweep_case(
            size, min(USUAL_BATCH_BLOCKS, max(1, USUAL_BATCH_BYTES // size)), plan.pass_bytes
        )
        for size in plan.sizes
    ]


def sweep_case(block_bytes: int, batch_blocks: int, pass_bytes: int) -> Case:
    """Whole batches, one at least."""
    batches = min(PASS_BATCHES, max(1, pass_bytes // (block_bytes * batch_blocks)))
    return Case(block_bytes, batches * batch_blocks, batch_blocks, waits=True)


def point_of(
    series: Series, name: str, verb: Verb, case: Case, clients: int, samples: Sequence[Sample]
) -> Point:
    """The figures of one entrant and verb."""
    moves = verb in MOVES
    cpu_client, cpu_server = cpu_cost(case, samples)
    has_batches = all(sample.batches_s for sample in samples)
    return Point(
        series=series,
        name=name,
        verb=verb,
        block_bytes=case.block_bytes,
        batch_blocks=case.batch_blocks,
        clients=clients,
        gb_s=_of(samples, case.pass_bytes / BYTES_A_GB) if moves else None,
        operations_s=_of(samples, case.block_count),
        p50_s=latency(samples, 0.5) if has_batches else None,
        p99_s=latency(samples, 0.99) if has_batches else None,
        cpu_client_s_gb=cpu_client if moves else None,
        cpu_server_s_gb=cpu_server if moves else None,
    )


def _of(samples: Sequence[Sample], amount: float) -> Figure:
    return Figure.of(amount / sample.seconds for sample in samples)


def points_of(series: Series, result: CaseResult) -> list[Point]:
    """A point for every entrant and verb of a case with one client."""
    return [
        point_of(series, name, verb, result.case, 1, samples)
        for (name, verb), samples in result.samples.items()
    ]


class Sweeper:
    """Holds what all series share: a server, an arena for the limits, logs."""

    def __init__(
        self,
        plan: Plan,
        logs: Path,
        cleanup: contextlib.ExitStack,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._plan, self._logs, self._cleanup, self._on_step = plan, logs, cleanup, on_step
        self._end_s = time.monotonic() + plan.budget_s
        on_step("starting a server")
        bytes_at_once = max(case.pass_bytes for case in [*batch_cases(plan), *usual_cases(plan)])
        self._arena_bytes = bytes_at_once
        self._server = BenchServer(POOL_SHARE * bytes_at_once + POOL_SLACK)
        cleanup.callback(self._server.close)
        self._one_client = [
            self._fleet(transport, 1, transport, cleanup) for transport in plan.transports
        ]
        self._limits = self._make_limits()
        self.blocks_verified = 0
        self.left_out: list[str] = []

    def _fleet(
        self, transport: Transport, count: int, name: str, until: contextlib.ExitStack
    ) -> Fleet:
        arguments = {"url": self._server.url, "transport": transport}
        recipe = Recipe(
            "infinistore.bench.store:StoreContender",
            self._arena_bytes // count,
            self._plan.seed,
            arguments,
        )
        log = self._logs / f"{transport}-{count}.log"
        fleet = Fleet(name, [recipe] * count, log, far_pids=(self._server.pid,))
        until.callback(fleet.close)
        if transport == "shm":
            fleet.touch(POOL_SHARE * self._arena_bytes)
        return fleet

    def _make_limits(self) -> list[Entrant]:
        arena = Arena(self._arena_bytes, self._plan.seed)
        found: list[Contender] = []
        if "shm" in self._plan.transports:
            middle = shared_memory(self._arena_bytes)
            found += [CopyLimit(arena, middle, nontemporal=way) for way in (False, True)]
        if "tcp" in self._plan.transports:
            found += [StreamLimit(arena, streams) for streams in (1, 2)]
        for contender in found:
            self._cleanup.callback(contender.close)
        return [InProcess(contender, arena) for contender in found]

    def _measure(
        self, case: Case, about: str, entrants: Sequence[Entrant], verbs: Sequence[Verb] = MOVES
    ) -> CaseResult:
        """Nothing once the time is over."""
        about = f"{describe(case)}, {about}"
        if time.monotonic() > self._end_s:
            self.left_out.append(about)
            return CaseResult(case)
        self._on_step(about)
        found = measure(
            case, entrants, self._plan.rounds, WARM_UPS, seed=self._plan.seed, verbs=verbs
        )
        self.blocks_verified += found.blocks_verified
        return found

    def calls(self) -> list[Call]:
        """Bare round trips, single gets, and lookups of 1,000 keys, in turns."""
        if time.monotonic() > self._end_s:
            self.left_out.append("single calls")
            return []
        self._on_step("single calls and round trips")
        with contextlib.ExitStack() as until:
            probes, far_pids = until.enter_context(round_trip_probes())
            for transport in self._plan.transports:
                url, seed = self._server.url, self._plan.seed
                probes.update(until.enter_context(store_probes(url, None, transport, seed)))
            until.enter_context(apart([*far_pids, self._server.pid]))
            found = measure_latencies(probes, self._plan.rounds)
        return [Call(name, found.figure(name, 0.5), found.figure(name, 0.99)) for name in probes]

    def batches(self) -> Iterator[Point]:
        """One client: every verb, every size, every batch."""
        for case in batch_cases(self._plan):
            found = self._measure(case, "one client", self._one_client, VERBS)
            yield from points_of("batches", found)

    def clients(self) -> Iterator[Point]:
        """1 to 8 clients in turns, at the usual batches; the same bytes in all for any number."""
        with contextlib.ExitStack() as until:
            fleets: dict[str, tuple[Transport, int]] = {}
            entrants: list[Entrant] = []
            for transport in self._plan.transports:
                for count in self._plan.clients:
                    name = f"{transport} {count}"
                    fleets[name] = (transport, count)
                    entrants.append(self._fleet(transport, count, name, until))
            for case in usual_cases(self._plan):
                about = f"{max(self._plan.clients)} clients at most"
                found = self._measure(case, about, entrants, VERBS)
                for (name, verb), samples in found.samples.items():
                    transport, count = fleets[name]
                    yield point_of("clients", transport, verb, case, count, samples)

    def peers(self, missing: dict[str, str]) -> Iterator[Point]:
        """Ours, the limits and the peers, all in the same rounds, at the usual batches."""
        wanted = [peer for peer in PEERS if peer.transport in self._plan.transports]
        cases = [
            dataclasses.replace(case, block_count=min(case.block_count, PEER_PASS_BLOCKS))
            for case in usual_cases(self._plan)
        ]
        largest = max(case.pass_bytes for case in cases)
        with started(
            wanted, self._plan.peers, self._logs, largest, self._plan.seed, self._on_step
        ) as running:
            missing.update(running.missing)
            entrants = [*self._limits, *self._one_client, *running.fleets.values()]
            for case in cases:
                found = self._measure(case, "limits and peers", entrants)
                yield from points_of("peers", found)


def describe(case: Case) -> str:
    """For a person who waits."""
    return f"{case.block_count} blocks of {format_bytes(case.block_bytes)} by {case.batch_blocks}"


def run_sweep(plan: Plan, logs: Path, on_step: Callable[[str], None] = lambda step: None) -> Sweep:
    """Measures all series. Raises InfiniStoreError if it cannot; a missing peer is no error."""
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as cleanup:
        sweeper = Sweeper(plan, logs, cleanup, on_step)
        calls = sweeper.calls()
        points = [*sweeper.peers(missing), *sweeper.batches(), *sweeper.clients()]
        return Sweep(points, calls, missing, sweeper.left_out, sweeper.blocks_verified)
