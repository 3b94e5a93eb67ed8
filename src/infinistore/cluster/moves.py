"""In which order values travel between nodes, and which nodes are too restless to count. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from infinistore.cluster.spreading import Copies


def copies_to_make(
    wanted: Copies, made: Copies, rates: Mapping[int, float]
) -> list[tuple[int, str]]:
    """The group and node of each copy that is wanted and not there, the most useful first.

    So a group's copies alternate with those of groups that one holder less would leave as busy.
    """
    missing: dict[int, list[str]] = {}
    heap = []
    for group, names in wanted.items():
        there = set(made.get(group, ()))
        if left := [name for name in names if name not in there]:
            missing[group] = left[::-1]
            holders = 1 + len(names) - len(left)
            heap.append((-rates.get(group, 0.0) / holders, group, holders))
    heapq.heapify(heap)
    ordered = []
    while heap:
        _, group, holders = heapq.heappop(heap)
        ordered.append((group, missing[group].pop()))
        if missing[group]:
            part = -rates.get(group, 0.0) / (holders + 1)
            heapq.heappush(heap, (part, group, holders + 1))
    return ordered


def copies_to_drop(wanted: Copies, made: Copies) -> list[tuple[int, str]]:
    """The group and node of each copy that is there and not wanted."""
    return [
        (group, name)
        for group, names in made.items()
        for name in names
        if name not in wanted.get(group, ())
    ]


def restless(
    arrivals: Mapping[str, Sequence[float]], now_s: float, *, count_max: int, window_s: float
) -> set[str]:
    """Nodes that came more often than `count_max` times in the last `window_s`.

    While they are that, nothing is moved to them: what belongs to them stays where it is.
    """
    return {
        name
        for name, times in arrivals.items()
        if sum(now_s - window_s < time <= now_s for time in times) > count_max
    }
