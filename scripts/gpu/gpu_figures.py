"""What the runs on a GPU say: medians, what they are held to, and the table of both."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gpu_entrants as entrants

COLD, HIT = "cold", "hit"
SAVING_MAX, HIT_MAX = 1.02, 0.90
HIT_FROM_TOKENS = 4096


@dataclasses.dataclass(frozen=True)
class Sample:
    """One timed request: its first token, and how much of its prompt was not computed."""

    entrant: str
    kind: str
    tokens: int
    ms: float
    cached: int
    expected: int  # of `cached`

    @property
    def is_right(self) -> bool:
        """Whether it was the cold request, or the hit, that it is called."""
        if self.expected == 0:
            return self.cached == 0
        # Some engines count the last block of a prompt, of which they compute a token, too.
        return self.expected <= self.cached <= self.tokens


@dataclasses.dataclass(frozen=True)
class Promise:
    """A target, and whether it is kept."""

    name: str
    figure: str
    target: str
    is_kept: bool
    is_counted: bool = True  # towards the exit status

    def line(self) -> str:
        """As it is printed."""
        mark = "ok   " if self.is_kept else "SHORT"
        more = "" if self.is_counted else " (not counted: the other load mode is the faster)"
        return f"{mark} {self.name}: {self.figure}; promised {self.target}{more}"


class Samples:
    """All samples of a run."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.all = list(samples)
        self.names = list(dict.fromkeys(sample.entrant for sample in self.all))
        self.sizes = sorted({sample.tokens for sample in self.all})

    def times(self, name: str, kind: str, tokens: int) -> list[float]:
        """The milliseconds of one kind of request, in the order in which they were asked."""
        return [
            sample.ms
            for sample in self.all
            if (sample.entrant, sample.kind, sample.tokens) == (name, kind, tokens)
        ]

    def median(self, name: str, kind: str, tokens: int) -> float | None:
        """Their median; None if there are none."""
        times = self.times(name, kind, tokens)
        return statistics.median(times) if times else None

    def faster(self) -> str | None:
        """Our load mode with the faster hits at the longest prompts."""
        ours = [name for name in (entrants.ASYNC, entrants.LAYERWISE) if name in self.names]
        medians = {name: self.median(name, HIT, self.sizes[-1]) for name in ours}
        known = {name: median for name, median in medians.items() if median is not None}
        return min(known, key=lambda name: known[name]) if known else None


def promises(samples: Samples, waits: Iterable[Mapping[str, Any]] = ()) -> list[Promise]:
    """Every target that the run says something about."""
    found = []
    wrong = [sample for sample in samples.all if not sample.is_right]
    found.append(
        Promise(
            "cold requests were cold, and hits covered all whole blocks",
            f"{len(wrong)} of {len(samples.all)} were not" + _example(wrong),
            "0",
            not wrong,
        )
    )
    faster = samples.faster()
    for key in ("async", "layerwise"):
        entrant = entrants.ENTRANTS[key]
        if entrant.name in samples.names:
            found += _of(samples, entrant, entrant.name == faster)
    return found + _of_waits(list(waits))


def _of_waits(waits: Sequence[Mapping[str, Any]]) -> list[Promise]:
    """A connector may not make an engine wait for its whole GPU; the profiler itself does so."""
    counts = {(row["engine"], row["kind"]): _device_waits(row["calls"]) for row in waits}
    found = []
    for key in ("async", "layerwise"):
        entrant = entrants.ENTRANTS[key]
        for kind in (COLD, HIT):
            ours = counts.get((entrant.name, kind))
            plain = counts.get((entrant.plain, kind))
            if ours is not None and plain is not None:
                name = f"{entrant.name}, {kind}, calls that wait for the whole device"
                found.append(Promise(name, str(ours), f"<= {plain}, as plain", ours <= plain))
    return found


def _device_waits(calls: Mapping[str, Sequence[float]]) -> int:
    whole = ("cudaDeviceSynchronize", "cuCtxSynchronize")
    return sum(int(row[0]) for name, row in calls.items() if name in whole)


def what_waits(waits: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each request that was profiled: the calls that waited, their number and time."""
    lines = []
    for row in waits:
        calls = [f"{name} {n:.0f} ({ms:.1f} ms)" for name, (n, ms) in row["calls"].items()]
        lines.append(f"{row['engine']}, {row['kind']}, waits: {', '.join(calls) or 'none'}")
    return lines


def _example(wrong: Sequence[Sample]) -> str:
    if not wrong:
        return ""
    first = wrong[0]
    return (
        f" ({first.entrant}, {first.kind}, {first.tokens} tokens: {first.cached} of "
        f"{first.expected} cached)"
    )


def _of(samples: Samples, entrant: entrants.Entrant, is_counted: bool) -> list[Promise]:
    found = []
    longest = samples.sizes[-1]
    cold = _ratio(
        samples.median(entrant.name, COLD, longest), samples.median(entrant.plain, COLD, longest)
    )
    if cold is not None:
        found.append(
            Promise(
                f"{entrant.name}, {longest} tokens, cold with saving / {entrant.plain}",
                cold[1],
                f"<= {SAVING_MAX:.2f}",
                cold[0] <= SAVING_MAX,
                is_counted,
            )
        )
    peers = [name for name in (entrants.OFFLOAD, entrants.OFFLOAD_1) if name in samples.names]
    for tokens in samples.sizes:
        for peer in peers:
            hit = _ratio(
                samples.median(entrant.name, HIT, tokens), samples.median(peer, HIT, tokens)
            )
            if hit is not None and tokens >= HIT_FROM_TOKENS:
                found.append(
                    Promise(
                        f"{entrant.name}, {tokens} tokens, hit / {peer}",
                        hit[1],
                        f"<= {HIT_MAX:.2f}",
                        hit[0] <= HIT_MAX,
                        is_counted,
                    )
                )
    return found


def _ratio(ours: float | None, theirs: float | None) -> tuple[float, str] | None:
    if ours is None or theirs is None:
        return None
    return ours / theirs, f"{ours:.1f} / {theirs:.1f} ms = {ours / theirs:.3f}"


def markdown(samples: Samples, about: str) -> str:
    """A table: a line for each size of prompt and entrant."""
    lines = [
        about,
        "",
        "| prompt tokens | engine | cold, ms | hit, ms |",
        "|---:|---|---:|---:|",
    ]
    for tokens in samples.sizes:
        for name in samples.names:
            cells = [_cell(samples.times(name, kind, tokens)) for kind in (COLD, HIT)]
            lines.append(f"| {tokens:,} | {name} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def where_time_goes(timelines: Iterable[Mapping[str, Any]], tokens: int) -> list[str]:
    """A line for each request that was looked at: its calls, from when to when, and their sum."""
    lines = []
    for timeline in timelines:
        if timeline["tokens"] == tokens:
            calls = [
                f"{name} {first:.1f}-{last:.1f} ({count}: {total:.1f})"
                for name, (first, last, count, total) in timeline["calls"].items()
            ]
            head = f"{timeline['engine']}, {timeline['kind']}, {timeline['ms']:.1f} ms"
            lines.append(f"{head}: {', '.join(calls)}")
    return lines


def _cell(times: Sequence[float]) -> str:
    if not times:
        return ""
    return f"{statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f})"
