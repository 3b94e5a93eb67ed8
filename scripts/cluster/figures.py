"""Figures from what was counted and timed, and the lines that say whether they hold; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.rig import Asked
from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import Placement, group_id


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that must hold."""

    name: str
    figure: str
    target: str
    holds: bool

    def text(self) -> str:
        return (
            f"{self.name:<44} {self.figure:<34} {self.target:<26} {'ok' if self.holds else 'short'}"
        )


def at_most(name: str, value: float, bound: float, unit: str = "", more: str = "") -> Line:
    """It holds if the value is there (no NaN) and not above the bound."""
    shown = f"{value:.3g}{unit}{more}"
    return Line(name, shown, f"<= {bound:g}{unit}", value <= bound)


def imbalance(served: Mapping[str, int]) -> float:
    """The busiest node's bytes, in means of all; NaN: nobody served anything."""
    total = sum(served.values())
    return max(served.values()) * len(served) / total if total else math.nan


def part(served: Mapping[str, int], name: str) -> float:
    """One node's bytes, in means of all."""
    total = sum(served.values())
    return served.get(name, 0) * len(served) / total if total else math.nan


def percentile(values: Iterable[float], share: float) -> float:
    """NaN: there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def owned_by(name: str, names: Sequence[str], groups: Iterable[str]) -> set[str]:
    """Of these groups those that a node owns, among nodes of one capacity."""
    placement = Placement([Node(each, each, 1) for each in names])
    return {each for each in groups if placement.order(group_id(each.encode()))[0].name == name}


def first_answers(requests: Iterable[Asked], groups: set[str]) -> list[float]:
    """How long each client waited for its first answer for each of these groups."""
    first: dict[tuple[int, str], Asked] = {}
    for asked in requests:
        if asked.group in groups:
            place = (asked.client, asked.group)
            if place not in first or asked.began_s < first[place].began_s:
                first[place] = asked
    return [asked.took_s for asked in first.values()]
