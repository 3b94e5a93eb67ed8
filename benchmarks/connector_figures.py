"""The figures of `make proof-cpu`: what the connector adds to a prefill, and to a hit. Pure."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CPU_TARGET = 0.01  # of plain vLLM's CPU seconds for the same cold prompt
# A hit is bound by compute if the engine computes for longer than it waits for the store. Then its
# time to the first token is below twice that of a hit in the engine's own cache, too.
SHARE_TARGET = 0.5
HIT_TARGET = 2.0
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Cold:
    """One cold prompt on all three: a plain vLLM, ours without its connector, ours. CPU seconds."""

    tokens: int
    plain_s: float
    without_s: float
    ours_s: float
    added_s: float  # of ours: the connector's hooks, its threads, and steps that wait for the store
    server_s: float

    @property
    def over_itself(self) -> float:
        """What ours used more than without its connector."""
        return self.ours_s / self.without_s - 1

    @property
    def over_plain(self) -> float:
        """What ours used more than another process without any."""
        return self.ours_s / self.plain_s - 1

    @property
    def control(self) -> float:
        """What two processes differ in that do the same."""
        return self.without_s / self.plain_s - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Warm:
    """One prompt that the store has, and that the engine's own cache has. Seconds."""

    tokens: int
    ttft_s: float
    lookup_s: float  # of it: until the store's answer was taken
    load_s: float  # of it: until a step took the request up
    own_ttft_s: float  # of a hit in the engine's own cache, with no connector
    server_s: float  # CPU

    @property
    def share(self) -> float:
        """What part of the time to the first token is waiting for the store."""
        return (self.lookup_s + self.load_s) / self.ttft_s


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One promise: ours beside its limit."""

    name: str
    figure: str
    limit: str
    ratio: float
    target: float
    ok: bool

    def __str__(self) -> str:
        return (
            f"{self.name}  {self.figure}  limit {self.limit}  ratio {self.ratio:.4f}  "
            f"target {self.target:.2f}  {'ok' if self.ok else 'short'}"
        )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where their median lies with `CONFIDENCE` (sign test: no assumption of a distribution)."""
    ordered = sorted(values)
    count = len(ordered)
    # The largest rank at which both tails together stay below what is left.
    tail, rank = 0.0, 0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        rank = below
    return ordered[rank], ordered[-1 - rank]


def cold_lines(rows: Sequence[Cold]) -> list[Line]:
    """Is what can be attributed small enough, and do pairs of runs not show otherwise."""
    name = f"connector CPU, {rows[0].tokens} cold tokens"
    limit_s = statistics.median(row.without_s for row in rows)
    limit = f"{1e3 * limit_s:.0f} ms"
    added_s = statistics.median(row.added_s for row in rows)
    counted = 1 + added_s / limit_s
    median = statistics.median(row.over_itself for row in rows)
    low, high = interval([row.over_itself for row in rows])
    return [
        Line(
            f"{name}, counted",
            f"+{1e3 * added_s:.1f} ms",
            limit,
            counted,
            1 + CPU_TARGET,
            counted <= 1 + CPU_TARGET,
        ),
        # A busy machine widens the interval: short is what it shows to be above the target.
        Line(
            f"{name}, {len(rows)} pairs",
            f"{median:+.2%} ({low:+.1%} to {high:+.1%})",
            limit,
            1 + median,
            1 + CPU_TARGET,
            low <= CPU_TARGET,
        ),
    ]


def cold_facts(rows: Sequence[Cold]) -> list[str]:
    """What is said beside the lines: the other process, and the server."""
    found = []
    for what, values in (
        ("over a plain vLLM's process", [row.over_plain for row in rows]),
        ("of it the two processes' own difference", [row.control for row in rows]),
    ):
        low, high = interval(values)
        found.append(f"{what}: {statistics.median(values):+.2%} ({low:+.1%} to {high:+.1%})")
    server_s = statistics.median(row.server_s for row in rows)
    both_s = statistics.median(row.added_s + row.server_s for row in rows)
    limit_s = statistics.median(row.without_s for row in rows)
    found.append(
        f"the server's process: {1e3 * server_s:.1f} ms, with the connector "
        f"{1e3 * both_s:.1f} ms = {both_s / limit_s:.2%}"
    )
    return found


def warm_lines(rows: Sequence[Warm]) -> list[Line]:
    """The store's share of a hit's time to the first token, and the engine's own hit beside it."""
    name = f"{rows[0].tokens} warm tokens"
    ttft_s = statistics.median(row.ttft_s for row in rows)
    own_s = statistics.median(row.own_ttft_s for row in rows)
    waited_s = statistics.median(row.lookup_s + row.load_s for row in rows)
    share = statistics.median(row.share for row in rows)
    ratio = statistics.median(row.ttft_s / row.own_ttft_s for row in rows)
    return [
        Line(
            f"store's share of TTFT, {name}",
            f"{1e3 * waited_s:.1f} ms",
            f"{1e3 * ttft_s:.0f} ms",
            share,
            SHARE_TARGET,
            share <= SHARE_TARGET,
        ),
        Line(
            f"TTFT over the engine's own hit, {name}",
            f"{1e3 * ttft_s:.0f} ms",
            f"{1e3 * own_s:.0f} ms",
            ratio,
            HIT_TARGET,
            ratio <= HIT_TARGET,
        ),
    ]


def warm_facts(rows: Sequence[Warm]) -> list[str]:
    """What the wait for the store consists of."""
    lookup_s, load_s, server_s = (
        statistics.median(getattr(row, name) for row in rows)
        for name in ("lookup_s", "load_s", "server_s")
    )
    return [
        f"a hit's wait: {1e3 * lookup_s:.1f} ms for the answer, {1e3 * load_s:.1f} ms for the "
        f"bytes; the server's CPU: {1e3 * server_s:.1f} ms"
    ]
