"""A line of a check: what was measured, beside what, and whether it is enough; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infinistore.bench.figures import Figure


@dataclass(frozen=True, slots=True)
class Line:
    """One target. `beside` is the limit or the peer, `ratio` ours over it; texts, for people."""

    name: str
    ours: str
    beside: str
    ratio: str
    target: str
    ok: bool

    @property
    def verdict(self) -> str:
        return "ok" if self.ok else "short"


def not_measured(name: str, why: str, target: str = "measured") -> Line:
    """A line for what could not be: it counts as short."""
    first = next(iter(why.strip().splitlines()), "")
    return Line(name, f"not measured: {first}", "", "", target, ok=False)


def at_least(figure: Figure, target: float) -> tuple[str, str, bool]:
    """Ratio, target and verdict of a share of a limit: its median decides."""
    return show_ratio(figure), f">= {target:.2f}", figure.median >= target


def ahead(figure: Figure, factor: float) -> tuple[str, str, bool]:
    """Ratio, target and verdict beside a peer: the whole interval has to be beyond the factor."""
    is_ok = figure.low > factor if factor == 1 else figure.low >= factor
    return show_ratio(figure), "> 1.00" if factor == 1 else f">= {factor:.2f}", is_ok


def at_most(value: float, bound: float, unit: str) -> tuple[str, bool]:
    """Target and verdict of a figure that must not exceed a bound."""
    return f"<= {bound:g} {unit}", value <= bound


def show_ratio(figure: Figure) -> str:
    """The median, in what it lies."""
    return f"{figure.median:.2f} ({figure.low:.2f}-{figure.high:.2f})"


def as_text(lines: Sequence[Line]) -> list[str]:
    """The lines in columns: name, ours, limit or peer, ratio, target, ok or short."""
    rows = [(ln.name, ln.ours, ln.beside, ln.ratio, ln.target, ln.verdict) for ln in lines]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(6)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def as_markdown(lines: Sequence[Line]) -> str:
    """The lines as a table."""
    rows = [(ln.name, ln.ours, ln.beside, ln.ratio, ln.target, ln.verdict) for ln in lines]
    heading = ("what", "ours", "limit or peer", "ratio", "target", "")
    table = [heading, ("---",) * 6, *rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in table)
