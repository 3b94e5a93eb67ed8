"""Targets of single calls: a get beside the bare round trip, lookups beyond one."""

from __future__ import annotations

import contextlib

from infinistore.bench.checks.line import Line, show_ratio
from infinistore.bench.checks.scope import MIB, Scope
from infinistore.bench.figures import Figure
from infinistore.bench.latency import (
    LOOKUP_KEYS,
    ROUND_TRIPS,
    UNIX,
    Latencies,
    measure_latencies,
    round_trip_probes,
    store_probes,
)
from infinistore.bench.process import apart
from infinistore.bench.store import BenchServer

GET_ROUND_TRIPS_MAX = 3.0
LOOKUP_BEYOND_MS_MAX = 0.3
POOL_BYTES = 256 * MIB


def find(scope: Scope) -> list[Line]:
    """A get over shared memory, and both lookups over each transport."""
    options = scope.options
    with contextlib.ExitStack() as cleanup:
        url = options.url
        if not url:
            server = BenchServer(POOL_BYTES)
            cleanup.callback(server.close)
            url = server.url
        probes, far_pids = cleanup.enter_context(round_trip_probes())
        for transport in options.transports:
            found = cleanup.enter_context(store_probes(url, options.token, transport, options.seed))
            probes.update(found)
        if not options.url:  # a server elsewhere cannot be placed, nor then be compared so
            cleanup.enter_context(apart([*far_pids, server.pid]))
        scope.on_step("single calls and round trips")
        latencies = measure_latencies(probes, scope.rounds)
    lines = [get_line(latencies)] if "shm" in options.transports else []
    return lines + [
        lookup_line(latencies, transport, verb)
        for transport in options.transports
        for verb in ("exists", "match_prefix")
    ]


def get_line(latencies: Latencies) -> Line:
    """How many bare round trips a get of one small block takes, by their medians."""
    ours, bare = latencies.percentiles("shm get"), latencies.percentiles(UNIX)
    times = Figure.of(mine / trip for mine, trip in zip(ours, bare, strict=True))
    return Line(
        "shm get of one 4KiB block, p50",
        f"{in_us(Figure.of(ours))}, p99 {latencies.figure('shm get', 0.99).median * 1e6:.1f} us",
        f"{in_us(Figure.of(bare))} {UNIX}",
        show_ratio(times),
        f"<= {GET_ROUND_TRIPS_MAX:.2f}",
        times.median <= GET_ROUND_TRIPS_MAX,
    )


def lookup_line(latencies: Latencies, transport: str, verb: str) -> Line:
    """What a lookup of 1,000 keys takes beyond one bare round trip of its transport."""
    name, trip = f"{transport} {verb}", ROUND_TRIPS[transport]
    ours, bare = latencies.percentiles(name), latencies.percentiles(trip)
    beyond = Figure.of((mine - one) * 1e3 for mine, one in zip(ours, bare, strict=True))
    return Line(
        f"{name} of {LOOKUP_KEYS:,} keys, p50",
        f"{in_us(Figure.of(ours))}, p99 {latencies.figure(name, 0.99).median * 1e6:.1f} us",
        f"{in_us(Figure.of(bare))} {trip}",
        f"{beyond.median:.3f} ms beyond ({beyond.low:.3f}-{beyond.high:.3f})",
        f"<= {LOOKUP_BEYOND_MS_MAX} ms beyond",
        beyond.median <= LOOKUP_BEYOND_MS_MAX,
    )


def in_us(figure: Figure) -> str:
    """Seconds as microseconds."""
    return f"{figure.median * 1e6:.1f} ({figure.low * 1e6:.1f}-{figure.high * 1e6:.1f}) us"
