"""What simulated courses have shown, as lines with a verdict, as Markdown, and as JSON; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from infinistore.bench.checks.line import Line
from infinistore.bench.cluster.course import IMBALANCE_MAX, Found
from infinistore.units import format_bytes

BACK_S_MAX = 10.0
SHARE_OFF_MAX = 0.2  # of a node that has come, beside the mean
JOIN_FACTOR_MAX = 1.2  # of an even share of the data
UNEVEN_MIN = 1.5  # without spreading: else there is nothing to show


def lines(found: Found) -> list[Line]:
    """One line a target."""
    name = f"{found.nodes} nodes, {found.load}"
    even = 1 / found.nodes  # one has crashed before another joins
    balanced = f"<= {IMBALANCE_MAX}"
    back = f"<= {BACK_S_MAX:g} s"

    def line(what: str, ours: str, beside: str, target: str, ok: bool) -> Line:
        return Line(f"{name}: {what}", ours, beside, "", target, ok)

    return [
        line("max/mean", f"{found.with_spreading:.2f}", f"without {found.without:.2f}",
             f"{balanced}, > {UNEVEN_MIN} without",
             found.with_spreading <= IMBALANCE_MAX and found.without > UNEVEN_MIN),
        line("back after the hot set changed", f"{found.change_s:.0f} s",
             f"then {found.changed:.2f}", back, found.change_s <= BACK_S_MAX),
        line("back after a crash", f"{found.crash_s:.0f} s", f"then {found.crashed:.2f}", back,
             found.crash_s <= BACK_S_MAX and found.crashed <= IMBALANCE_MAX),
        line("a join moves of all data", f"{found.join_part:.2%}",
             f"in {found.join_s:.1f} s, an even share {even:.2%}", f"<= {1.2 * even:.2%}",
             found.join_part <= JOIN_FACTOR_MAX * even),
        line("load of who joined", f"{found.join_share:.2f} of the mean", "",
             f"within {SHARE_OFF_MAX:.0%}", abs(found.join_share - 1) <= SHARE_OFF_MAX),
        line("max/mean after a drain", f"{found.drained:.2f}", "", balanced,
             found.drained <= IMBALANCE_MAX),
        line("copies when it has cooled", f"{found.copies_left}",
             f"of {found.copies}, after {found.cool_s:.0f} s", "0", not found.copies_left),
    ]  # fmt: skip


def as_markdown(all_found: Sequence[Found]) -> str:
    """A table of all courses, and below it each one's windows."""
    rows = [("what", "figure", "beside", "target", "")]
    rows += [("---",) * 5]
    rows += [
        (ln.name, ln.ours, ln.beside, ln.target, ln.verdict)
        for found in all_found
        for ln in lines(found)
    ]
    text = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    for found in all_found:
        text += f"\n{found.nodes} nodes, {found.load}, {found.groups} groups:\n\n"
        text += "| s | phase | max/mean | copies | moved so far |\n|---|---|---|---|---|\n"
        text += "".join(
            f"| {m.at_s:.0f} | {m.phase} | {m.imbalance:.2f} | {m.copies} "
            f"| {format_bytes(int(m.moved_bytes) >> 20 << 20)} |\n"
            for m in found.moments
        )
    return text


def as_json(all_found: Sequence[Found]) -> dict[str, Any]:
    """Everything."""
    targets = [asdict(ln) | {"verdict": ln.verdict} for found in all_found for ln in lines(found)]
    return {"targets": targets, "courses": [asdict(found) for found in all_found]}
