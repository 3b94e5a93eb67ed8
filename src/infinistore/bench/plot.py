"""Line charts as SVG, written by hand: two logarithmic axes, lines with markers, a legend; pure.

No library for it: the package would drag one along for a handful of pictures in its documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 470, 300  # of the axes and what is written at them; a legend stands below
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 30, 40
LEGEND_ROW, LEGEND_COLUMNS, LEGEND_PAD = 16, 2, 12
# Told apart by those who do not see all colours: M. Okabe and K. Ito, Color Universal Design.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000",
)  # fmt: skip
GRID, TEXT, BACKGROUND = "#d9d9d9", "#333333", "#ffffff"


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y) of one name, all positive. A limit is dashed; ours is thick."""

    name: str
    points: Sequence[tuple[float, float]]
    is_limit: bool = False
    is_ours: bool = False

    @property
    def stroke(self) -> str:
        dash = ' stroke-dasharray="6 3"' if self.is_limit else ""
        return f'stroke-width="{3.5 if self.is_ours else 1.5}"{dash}'


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture of eight lines at most; `show_x` and `show_y` name a value on their axis."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    show_x: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    show_y: Callable[[float], str] = field(default=lambda value: f"{value:g}")


def as_svg(charts: Sequence[Chart], columns: int = 2) -> str:
    """The charts side by side. Raises ValueError if there are none, or too many lines in one."""
    if not charts:
        raise ValueError("no charts to draw")
    for chart in charts:
        if len(chart.lines) > len(COLOURS):
            raise ValueError(f"{chart.title}: {len(chart.lines)} lines, {len(COLOURS)} colours")
    columns = min(columns, len(charts))
    legend_rows = max(-(-len(chart.lines) // LEGEND_COLUMNS) for chart in charts)
    height = HEIGHT + LEGEND_ROW * legend_rows + LEGEND_PAD
    size = columns * WIDTH, -(-len(charts) // columns) * height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif" font-size="11" '
        f'fill="{TEXT}">',
        f'<rect width="100%" height="100%" fill="{BACKGROUND}"/>',
    ]
    for index, chart in enumerate(charts):
        across, down = index % columns * WIDTH, index // columns * height
        parts.append(f'<g transform="translate({across} {down})">')
        parts += [*_chart(chart), *_legend(chart.lines), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(lines: Sequence[Line]) -> list[str]:
    parts = []
    for index, line in enumerate(lines):
        x = LEFT + index % LEGEND_COLUMNS * (WIDTH - LEFT) // LEGEND_COLUMNS
        y = HEIGHT + LEGEND_ROW * (index // LEGEND_COLUMNS) + 6
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{COLOURS[index]}" '
            f'{line.stroke}/><text x="{x + 28}" y="{y + 4}">{escape(line.name)}</text>'
        )
    return parts


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values from `low` to `high` along `pixels`, by their logarithms."""

    low: float
    high: float
    begin: float
    pixels: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * self.pixels


def _chart(chart: Chart) -> list[str]:
    xs = sorted({x for line in chart.lines for x, _ in line.points})
    ys = [y for line in chart.lines for _, y in line.points]
    if not xs:
        return [f'<text x="{LEFT}" y="{TOP}">{escape(chart.title)}: nothing measured</text>']
    x_axis = _Axis(xs[0], max(xs[-1], xs[0] * 2), LEFT, WIDTH - LEFT - RIGHT)
    ticks = decades(min(ys), max(ys))
    y_axis = _Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, -(HEIGHT - BOTTOM - TOP))
    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(chart.title)}</text>']
    for tick in ticks:
        y = y_axis.at(tick)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>'
            f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{chart.show_y(tick)}</text>'
        )
    for x in xs:
        at = x_axis.at(x)
        parts.append(
            f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{GRID}"/>'
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">'
            f"{chart.show_x(x)}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(chart.x_name)}'
        f'</text><text transform="translate(12 {HEIGHT / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(chart.y_name)}</text>'
    )
    for line, colour in zip(chart.lines, COLOURS, strict=False):
        parts += _line(line, x_axis, y_axis, colour)
    return parts


def _line(line: Line, x_axis: _Axis, y_axis: _Axis, colour: str) -> list[str]:
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in sorted(line.points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" {line.stroke}>'
        f"<title>{escape(line.name)}</title></polyline>",
        *marks,
    ]


def decades(low: float, high: float) -> list[float]:
    """1, 2, 5 and their tens, from just below `low` to just above `high`; two at least."""
    steps = (1.0, 2.0, 5.0)
    first = math.floor(math.log10(low))
    ticks = [
        step * 10.0**power
        for power in range(first, math.ceil(math.log10(high)) + 1)
        for step in steps
    ]
    begin = max(index for index, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    end = next(index for index, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return ticks[begin : max(end, begin + 1) + 1]
