"""The figures of `make bench-vllm`, and whether ours is behind: pure."""

from __future__ import annotations

import dataclasses
import math
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

# Two runs of one plain server differ by more than the first: a smaller difference of cold times
# says nothing about a connector. A busy machine adds to it, as far as the spread of the differences
# shows, but never beyond the second: what cannot be told apart there counts as short.
COLD_NOISE_MIN, COLD_NOISE_MAX = 0.01, 0.03


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


@dataclasses.dataclass(frozen=True, slots=True)
class Promise:
    """One thing that must hold: what was measured, what was promised."""

    name: str
    figure: str
    target: str
    ok: bool


def promises(samples: Mapping[str, Sequence[Sample]]) -> list[Promise]:
    """Everybody measured, every hit there, ours behind in nothing; a peer left out is short."""
    missing = [server for server in ALL if not samples.get(server)]
    if missing:
        return [Promise(f"bench-vllm: {name}", "not measured", "runs", False) for name in missing]
    found = [_hits(server, samples[server]) for server in (*OURS, PEER)]
    for server in OURS:
        found += _warm(server, samples)
        found.append(_cold(server, samples))
    return found


def _hits(server: str, own: Sequence[Sample]) -> Promise:
    """Equal times for unequal work would say nothing."""
    loaded = sum(sample.warm_hits for sample in own)
    expected = sum(sample.warm_expected for sample in own)
    ok = all(sample.warm_hits == sample.warm_expected for sample in own)
    return Promise(f"{server}: tokens loaded when warm", str(loaded), str(expected), ok)


def _warm(server: str, samples: Mapping[str, Sequence[Sample]]) -> list[Promise]:
    pairs = list(zip(samples[server], samples[PEER], strict=True))
    found = []
    for size in dict.fromkeys(sample.size for sample in samples[PLAIN]):
        sized = [(o.warm_ms or 0, p.warm_ms or 0) for o, p in pairs if o.size == size]
        ours, peers = (statistics.median(column) for column in zip(*sized, strict=True))
        # Prompt by prompt: what slowed the machine for a while slowed both.
        behind_ms = statistics.median(own - peer for own, peer in sized)
        name = f"{server}: warm TTFT, {size} prompts"
        target = f"<= {peers:.0f} ms of {PEER}"
        found.append(Promise(name, f"{ours:.0f} ms ({behind_ms:+.0f})", target, behind_ms <= 0))
    return found


def _cold(server: str, samples: Mapping[str, Sequence[Sample]]) -> Promise:
    rows = list(zip(samples[server], samples[PEER], samples[PLAIN], strict=True))
    ours = statistics.median(own.cold_ms / plain.cold_ms - 1 for own, _, plain in rows)
    peers = statistics.median(peer.cold_ms / plain.cold_ms - 1 for _, peer, plain in rows)
    differences = [(own.cold_ms - peer.cold_ms) / plain.cold_ms for own, peer, plain in rows]
    behind, noise = statistics.median(differences), cold_noise(differences)
    return Promise(
        f"{server}: cold overhead over plain vLLM",
        f"{ours:+.1%} ({behind:+.1%})",
        f"<= {peers:+.1%} of {PEER}, within {noise:.1%}",
        behind <= noise,
    )


def cold_noise(differences: Sequence[float]) -> float:
    """Two standard errors of the differences' median, from their quartiles, within the bounds."""
    if len(differences) < 4:
        return COLD_NOISE_MIN
    low, _, high = statistics.quantiles(differences, n=4)
    deviation = (high - low) / 1.349
    error = 1.253 * deviation / math.sqrt(len(differences))
    return min(max(2 * error, COLD_NOISE_MIN), COLD_NOISE_MAX)


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
