"""The figures of `make bench-vllm`, and whether ours is behind: pure."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAIN, SHM, TCP, PEER = (
    "plain vLLM",
    "InfiniStore, shm",
    "InfiniStore, TCP",
    "MooncakeStore, TCP",
)
OURS = (SHM, TCP)
ALL = (PLAIN, SHM, TCP, PEER)

# Two runs of one plain server differ by more than this: a smaller difference of cold times says
# nothing about a connector.
COLD_NOISE = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One prompt on one server: asked cold, then again from the store. Milliseconds."""

    prompt: str
    size: str  # the prompt's kind of length
    tokens: int
    cold_ms: float
    warm_ms: float | None = None  # plain has nothing to load from
    warm_hits: int = 0
    warm_expected: int = 0


Samples = dict[str, list[Sample]]  # by server, each in the prompts' order


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One server and size of prompts in the table: medians over the prompts, in milliseconds."""

    server: str
    size: str
    tokens: int
    cold_ms: float
    cold_overhead_ms: float  # over plain, prompt by prompt
    warm_ms: float | None


def lines(samples: Mapping[str, Sequence[Sample]]) -> list[Line]:
    """The table, size after size."""
    table = []
    for size in dict.fromkeys(sample.size for sample in samples[PLAIN]):
        plain = [s for s in samples[PLAIN] if s.size == size]
        for server in ALL:
            own = [s for s in samples.get(server, ()) if s.size == size]
            if not own:
                continue
            warm = [s.warm_ms for s in own if s.warm_ms is not None]
            table.append(
                Line(
                    server,
                    size,
                    round(statistics.median(s.tokens for s in own)),
                    statistics.median(s.cold_ms for s in own),
                    statistics.median(
                        s.cold_ms - p.cold_ms for s, p in zip(own, plain, strict=True)
                    ),
                    statistics.median(warm) if warm else None,
                )
            )
    return table


def shortfalls(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """Where ours is behind the peer, where a hit is missing, or why nothing can be said."""
    found = [f"{server} was not measured" for server in ALL if not samples.get(server)]
    if found:
        return found
    found += [
        f"{server}, {sample.prompt}: {sample.warm_hits} of {sample.warm_expected} tokens loaded"
        for server in (*OURS, PEER)
        for sample in samples[server]
        if sample.warm_hits != sample.warm_expected
    ]
    for server in OURS:
        pairs = list(zip(samples[server], samples[PEER], strict=True))
        for size in dict.fromkeys(sample.size for sample in samples[PLAIN]):
            warm_ms = statistics.median(
                (ours.warm_ms or 0) - (peer.warm_ms or 0)
                for ours, peer in pairs
                if ours.size == size
            )
            if warm_ms > 0:
                found.append(f"{server}: {warm_ms:.0f} ms behind, warm, {size}")
        cold = statistics.median(
            (ours.cold_ms - peer.cold_ms) / peer.cold_ms for ours, peer in pairs
        )
        if cold > COLD_NOISE:
            found.append(f"{server}: {cold:.1%} behind, cold")
    return found


def markdown(table: Sequence[Line], about: str) -> str:
    """The table for docs/bench-vllm.md."""
    rows = [
        about,
        "",
        "| prompts | server | cold TTFT | over plain | warm TTFT |",
        "|---|---|---:|---:|---:|",
    ]
    for line in table:
        warm = "-" if line.warm_ms is None else f"{line.warm_ms:.0f} ms"
        over = "-" if line.server == PLAIN else f"{line.cold_overhead_ms:+.0f} ms"
        rows.append(
            f"| {line.size}, {line.tokens} tokens | {line.server} | {line.cold_ms:.0f} ms "
            f"| {over} | {warm} |"
        )
    return "\n".join(rows)
