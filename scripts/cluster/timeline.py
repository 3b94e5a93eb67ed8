"""What happened over time as SVG: panels of lines above one another, events across all; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from infinistore.bench.plot import BACKGROUND, COLOURS, GRID, TEXT

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 150, 60, 30, 34
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same seconds; a name is shown beside each."""

    title: str
    lines: Mapping[str, Points]
    bound: float | None = None  # a dashed line at what it should not exceed


def as_svg(panels: Sequence[Panel], events: Sequence[tuple[float, str]]) -> str:
    """The panels of one run. Raises ValueError if there is nothing to show."""
    ends = [x for panel in panels for line in panel.lines.values() for x, _ in line]
    if not ends:
        raise ValueError("nothing to draw")
    end = max(ends)
    height = TOP + len(panels) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{TEXT}">',
        f'<rect width="100%" height="100%" fill="{BACKGROUND}"/>',
    ]
    for index, panel in enumerate(panels):
        parts += _panel(panel, TOP + index * (HEIGHT + GAP), end)
    for at, text in events:
        x = _x(at, end)
        parts.append(
            f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{height - GAP}" stroke="{TEXT}" '
            f'stroke-dasharray="2 3"/><text x="{x + 3:.0f}" y="{TOP - 8}">{escape(text)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(at: float, end: float) -> float:
    return LEFT + at / end * (WIDTH - LEFT - 80)


def _panel(panel: Panel, top: float, end: float) -> list[str]:
    values = [y for line in panel.lines.values() for _, y in line]
    most = max([*values, panel.bound or 0.0, 1e-9]) * 1.05
    parts = [f'<text x="{LEFT}" y="{top - 3}" font-weight="bold">{escape(panel.title)}</text>']
    for part in (0.0, 0.5, 1.0):
        y = top + HEIGHT - part * HEIGHT
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.0f}" x2="{_x(end, end):.0f}" y2="{y:.0f}" '
            f'stroke="{GRID}"/><text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">'
            f"{part * most:.3g}</text>"
        )
    if panel.bound is not None:
        y = top + HEIGHT - panel.bound / most * HEIGHT
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.0f}" x2="{_x(end, end):.0f}" y2="{y:.0f}" '
            f'stroke="{TEXT}" stroke-dasharray="6 3"/>'
        )
    for index, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(
            f"{_x(x, end):.1f},{top + HEIGHT - y / most * HEIGHT:.1f}" for x, y in line
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            f'<text x="{WIDTH - 74}" y="{top + 12 + 13 * index}" fill="{colour}">'
            f"{escape(name)}</text>"
        )
    return parts
