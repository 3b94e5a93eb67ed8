"""One whole run: memory, contenders and server set up, every size measured, all torn down."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infinistore.bench.figures import Case, make_case
from infinistore.bench.limits import MEMCPY, SOCKETS, STREAMING, CopyLimit, StreamLimit
from infinistore.bench.memory import Arena, shared_memory
from infinistore.bench.report import Row, make_rows
from infinistore.bench.rounds import (
    CaseResult,
    Contender,
    Entrant,
    InProcess,
    load_average,
    measure,
)
from infinistore.bench.store import BenchServer, StoreContender, Transport
from infinistore.units import format_bytes

MIB = 1024**2
BLOCK_SIZES = (4096, 16384, 65536, 262144, MIB)
BATCH_BLOCKS = 1024
BATCH_BYTES = 64 * MIB
WARM_UPS = 1
# Unsealed values may take a quarter of a pool, and a whole pass may be on its way at once.
POOL_SHARE = 4
POOL_SLACK = 128 * MIB

LIMITS: dict[str, tuple[str, ...]] = {
    "shm": (MEMCPY, STREAMING),
    "tcp": (SOCKETS,),
    "tls": (SOCKETS,),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `url` empty: a server of the run's own."""

    url: str = ""
    token: str | None = None
    transports: tuple[Transport, ...] = ("shm", "tcp")
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    working_set: int = 256 * MIB
    rounds: int = 5
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    """What a run found, and on what."""

    rows: list[Row]
    machine: dict[str, str]
    settings: dict[str, str]


def run(options: Options, on_step: Callable[[str], None] = lambda step: None) -> Run:
    """Measures; `on_step` is told what begins. Raises InfiniStoreError if it cannot."""
    load_before = load_average()
    results: list[CaseResult] = []
    cases = [
        make_case(size, options.working_set, BATCH_BLOCKS, BATCH_BYTES)
        for size in options.block_sizes
    ]
    arena = Arena(max(case.pass_bytes for case in cases), options.seed)
    with entrants(options, arena, on_step) as taking_part:
        for case in cases:
            on_step(describe(case))
            result = measure(
                case,
                taking_part,
                options.rounds,
                WARM_UPS,
                seed=options.seed,
                on_round=lambda: on_step(""),
            )
            results.append(result)
    settings = {
        "working set": format_bytes(options.working_set),
        "rounds": f"{options.rounds} after {WARM_UPS} warm-up",
        "blocks verified": str(sum(result.blocks_verified for result in results)),
        "load average": f"{load_before:.1f} before, {load_average():.1f} after",
    }
    # By TLS beside the same without, where that took part.
    limits = LIMITS | ({"tls": ("tcp",)} if "tcp" in options.transports else {})
    return Run(make_rows(results, options.transports, limits), describe_machine(), settings)


def step_count(options: Options) -> int:
    """How many rounds a run has, for a progress bar."""
    return len(options.block_sizes) * (options.rounds + WARM_UPS)


def describe(case: Case) -> str:
    return f"{case.block_count} blocks of {format_bytes(case.block_bytes)}"


@contextlib.contextmanager
def entrants(
    options: Options, arena: Arena, on_step: Callable[[str], None]
) -> Iterator[Sequence[Entrant]]:
    """The limits of the options' transports, and a client of each; they share the arena."""
    with contextlib.ExitStack() as cleanup:
        found: list[Entrant] = []

        def add(contender: Contender) -> None:
            cleanup.callback(contender.close)
            found.append(InProcess(contender, arena))

        url, far_pids = options.url, tuple[int, ...]()
        pool_bytes = POOL_SHARE * arena.source.size + POOL_SLACK
        if not url and set(options.transports) != {"tls"}:
            on_step("starting a server")
            server = BenchServer(pool_bytes)
            cleanup.callback(server.close)
            url, far_pids = server.url, (server.pid,)
        if "shm" in options.transports:
            middle = shared_memory(arena.source.size)
            add(CopyLimit(arena, middle, nontemporal=False))
            add(CopyLimit(arena, middle, nontemporal=True))
        if {"tcp", "tls"} & set(options.transports):
            add(StreamLimit(arena, 2))
        for transport in options.transports:
            authority = ""
            if transport == "tls" and not options.url:  # a server speaks it or does not
                secured = BenchServer(pool_bytes, speaks_tls=True)
                cleanup.callback(secured.close)
                url, far_pids, authority = secured.url, (secured.pid,), secured.authority
            client = StoreContender(
                arena,
                url=url,
                token=options.token,
                transport=transport,
                authority=authority,
                far_pids=far_pids,
            )
            add(client)
            if transport == "shm" and far_pids:  # a server of others keeps what it holds
                client.touch(POOL_SHARE * arena.source.size)
        yield found


def describe_machine() -> dict[str, str]:
    """What figures depend on."""
    return {
        "CPU": f"{_cpu_model()} x {os.cpu_count()}",
        "L3": _cache_size(),
        "kernel": platform.release(),
        "Python": platform.python_version(),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _cache_size() -> str:
    with contextlib.suppress(OSError):
        return Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    return "unknown"
