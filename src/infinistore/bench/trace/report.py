"""What a replay found: a table, targets, a picture; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infinistore.bench.trace.churn import USABLE_TARGET, Churn
from infinistore.bench.trace.replay import LRU, OPTIMUM, Point

OURS = "reuse"
AHEAD_TARGET = 1.001  # of the best published policy's mean: not a tie
BELOW_LRU_MAX = 0.005  # at any point


@dataclass(frozen=True, slots=True)
class Target:
    """What must hold: ours against a limit; `ratio` is ours of the limit, `target` its least."""

    name: str
    ours: float
    limit: float
    target: float

    @property
    def ratio(self) -> float:
        return self.ours / self.limit if self.limit else 0.0

    @property
    def is_short(self) -> bool:
        return self.ratio < self.target


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def rates(points: Sequence[Point], policy: str) -> dict[tuple[str, float], float]:
    """Hit rates of one policy by trace and capacity."""
    return {(p.trace, p.fraction): p.hit_rate for p in points if p.policy == policy}


def gap_closed(points: Sequence[Point], policy: str) -> float:
    """Which part of the way from LRU to the optimum a policy goes, on the mean of all points."""
    ours, lru, best = (mean(rates(points, p).values()) for p in (policy, LRU, OPTIMUM))
    return (ours - lru) / (best - lru) if best > lru else 0.0


def targets(points: Sequence[Point], churns: Sequence[Churn]) -> list[Target]:
    """Our policy's targets, and the pool's."""
    ours, lru = rates(points, OURS), rates(points, LRU)
    published = {
        p.policy: mean(rates(points, p.policy).values())
        for p in points
        if not p.is_store and p.policy != OPTIMUM
    }
    best = max(published, key=lambda policy: published[policy])
    closed = gap_closed(points, OURS)
    found = [
        Target(f"eviction: {OURS} on the mean, beside {best}, the best that is published "
               f"({closed:.0%} of the gap from LRU to the optimum)",
               mean(ours.values()), published[best], AHEAD_TARGET)
    ]  # fmt: skip
    found += [
        Target(f"eviction: {OURS}, {trace} at {fraction:.0%}, beside LRU - {BELOW_LRU_MAX}",
               ours[trace, fraction], rate - BELOW_LRU_MAX, 1.0)
        for (trace, fraction), rate in lru.items()
    ]  # fmt: skip
    found += [
        Target(f"pool: usable under churn, {churn.mix}", churn.usable, 1.0, USABLE_TARGET)
        for churn in churns
    ]
    return found


def target_line(target: Target) -> str:
    verdict = "short" if target.is_short else "ok"
    return (
        f"{target.name}: {target.ours:.4f}, limit {target.limit:.4f}, ratio {target.ratio:.3f}, "
        f"target {target.target:.3f}: {verdict}"
    )


def headings(points: Sequence[Point]) -> list[str]:
    columns = [f"{trace} {fraction:.0%}" for trace, fraction in rates(points, points[0].policy)]
    return ["policy", *columns, "mean", "of the gap", "ns a block"]


def rows(points: Sequence[Point]) -> list[list[str]]:
    """A row for each policy, in the order of their means."""
    found = []
    for policy in {p.policy: None for p in points}:
        of_policy = [p for p in points if p.policy == policy]
        measured = f"{mean(p.cpu_ns for p in of_policy):.0f}" if of_policy[0].is_store else "-"
        average = mean(p.hit_rate for p in of_policy)
        is_comparable = {LRU, OPTIMUM} <= {p.policy for p in points}
        closed = f"{gap_closed(points, policy):.0%}" if is_comparable else "-"
        name = f"{policy} (the store)" if of_policy[0].is_store else policy
        cells = [f"{p.hit_rate:.4f}" for p in of_policy]
        found.append((average, [name, *cells, f"{average:.4f}", closed, measured]))
    return [cells for _, cells in sorted(found, key=lambda row: row[0])]


_COLOURS = (
    "#c51b7d",
    "#1b7837",
    "#7fbf7b",
    "#762a83",
    "#af8dc3",
    "#d95f02",
    "#e6ab02",
    "#1f78b4",
    "#888888",
)
_PANEL, _HEIGHT, _MARGIN = 260, 240, 50


def as_svg(points: Sequence[Point]) -> str:
    """A panel for each trace: hit rate over capacity, a line for each policy."""
    policies = list({p.policy: None for p in points})
    traces = list({p.trace: None for p in points})
    width = _MARGIN + len(traces) * (_PANEL + _MARGIN)
    height = _HEIGHT + 2 * _MARGIN + 18 * len(policies)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, trace in enumerate(traces):
        of_trace = [p for p in points if p.trace == trace]
        parts += _panel(of_trace, policies, _MARGIN + index * (_PANEL + _MARGIN))
    for index, policy in enumerate(policies):
        y = _HEIGHT + 2 * _MARGIN + 18 * index
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{_MARGIN}" y="{y - 8}" width="20" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{_MARGIN + 28}" y="{y}">{policy}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(points: Sequence[Point], policies: Sequence[str], left: float) -> list[str]:
    low = min(p.hit_rate for p in points) * 0.95
    high = max(max(p.hit_rate for p in points) * 1.02, low + 1e-9)
    far = max(p.fraction for p in points)

    def at(point: Point) -> str:
        x = left + _PANEL * point.fraction / far
        y = _MARGIN + _HEIGHT * (high - point.hit_rate) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<text x="{left}" y="{_MARGIN - 20}" font-weight="bold">{points[0].trace}</text>',
        f'<text x="{left}" y="{_MARGIN - 4}">hit rate {low:.2f} to {high:.2f}; '
        f"capacity to {far:.0%}</text>",
        f'<rect x="{left}" y="{_MARGIN}" width="{_PANEL}" height="{_HEIGHT}" '
        'fill="none" stroke="#cccccc"/>',
    ]
    for index, policy in enumerate(policies):
        line = " ".join(at(p) for p in points if p.policy == policy)
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return parts
