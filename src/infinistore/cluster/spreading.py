"""How many copies of which groups, and where: each owner decides for its own, from all notes. Pure.

A group gets copies until each of its holders serves at most `share` of the nodes' mean load of it,
and an owner that is still busier than others gives more copies of what it serves most. Copies go
to nodes with little to do: each is drawn with its headroom as its weight, by a hash of group and
node, so that owners who decide at once, alike, do not all choose the idlest one. What has a copy
keeps it while loads change a little: nothing is withdrawn before its load has halved, and a node
has to be crowded for a copy to leave it, which it does once it is made elsewhere.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from infinistore.cluster.heat import HeatMap, HotGroup, Numbers
from infinistore.cluster.view import COPIES_MAX

Copies = Mapping[int, tuple[str, ...]]  # group id -> names of the nodes with a copy, by their order


@dataclass(frozen=True, slots=True)
class SpreadLimits:
    """Loads are parts of the nodes' mean load."""

    copies_max: int = COPIES_MAX  # of one group, beside its owner's; 0: none are made
    groups_max: int = 1024  # that one owner spreads
    share: float = 0.15  # of one group, on one node
    slack: float = 0.05  # above the mean, that an owner bears
    idle_bytes_per_s: float = 1 << 24  # the least that the mean counts as: less is easy for any


# An owner above its slack gives copies as long as one takes so much of the mean load from it; and
# one that takes less than a quarter of that is withdrawn, whatever the owner has to do.
_RELIEF_MIN = 0.01
_WORTHLESS = 0.0025
# A node so many slacks above the mean is crowded: copies leave it for other nodes, of one group
# this part at once, so that its other holders are not crowded thereby.
_CROWDED_SLACKS = 3
_LEAVING_PART = 8


@dataclass(slots=True)
class _Group:
    """One group of the owner's, while it is decided about."""

    group: int
    rate: float  # of all its holders
    size: int
    held: list[int]  # the nodes with copies, by their index
    made: set[int]  # of those, the ones that have it already
    wants: int  # holders, with the owner

    @property
    def holders(self) -> int:
        return 1 + len(self.held)


def spread(
    own: str, groups: Mapping[int, HotGroup], given: Copies, heat: HeatMap, limits: SpreadLimits
) -> Copies:
    """The copies that this node's own groups shall have, the hottest group's first.

    `groups` are those that the node owns, by what it serves of them itself; `given` are the copies
    that are there or being made, by what this decided last.
    """
    if own not in heat.index or not limits.copies_max:
        return {}  # it is leaving, or nobody knows it
    me = heat.index[own]
    mean = max(heat.mean, limits.idle_bytes_per_s)
    found = [
        _seen(group, me, groups.get(group), given.get(group, ()), heat)
        for group in {*groups, *given}
    ]
    found.sort(key=lambda each: (-each.rate, each.group))
    holders_max = min(1 + limits.copies_max, len(heat.names))
    load = _count(found, float(heat.loads[me]), mean, holders_max, limits)
    _relieve(found, load, mean, holders_max, limits)
    placing = _Placing(me, heat, mean, limits.slack)
    chosen = {}
    for each in [each for each in found if each.wants > 1][: limits.groups_max]:
        if names := placing.choose(each):
            chosen[each.group] = names
    return chosen


def _seen(group: int, me: int, hot: HotGroup | None, given: Sequence[str], heat: HeatMap) -> _Group:
    held = [index for index in heat.indexes(given) if index != me]
    rate = (hot.rate if hot else 0.0) + heat.rate(group, held)
    made = set(heat.indexes(heat.copies[me].get(group, ())))
    return _Group(group, rate, hot.size if hot else 0, held, made, 1 + len(held))


def _count(
    groups: list[_Group], load: float, mean: float, holders_max: int, limits: SpreadLimits
) -> float:
    """Sets how many holders each group wants by its own rate; the owner's load is then returned."""
    for each in groups:
        least = math.ceil(each.rate / (limits.share * mean))
        each.wants = min(max(each.holders, least), holders_max)
        load += each.rate / each.wants - each.rate / each.holders
    for each in reversed(groups):  # the coolest first
        most = max(1, math.ceil(2 * each.rate / (limits.share * mean)))
        if each.wants <= most:
            continue
        more = each.rate / most - each.rate / each.wants
        if load + more <= mean or each.rate / each.wants <= _WORTHLESS * mean:
            each.wants = most
            load += more
    return load


def _relieve(
    groups: list[_Group], load: float, mean: float, holders_max: int, limits: SpreadLimits
) -> None:
    """Sets more holders where that takes most from an owner that is above its slack."""
    heap = [(-each.rate / each.wants, index) for index, each in enumerate(groups)]
    heapq.heapify(heap)
    while heap and load > (1 + limits.slack) * mean:
        part, index = heapq.heappop(heap)
        each = groups[index]
        relief = -part / (each.wants + 1)
        if relief < _RELIEF_MIN * mean:
            continue
        if each.wants < holders_max:
            each.wants += 1
            load -= relief
            heapq.heappush(heap, (-each.rate / each.wants, index))


class _Placing:
    """Chooses nodes, and counts what it gave to each."""

    def __init__(self, me: int, heat: HeatMap, mean: float, slack: float) -> None:
        self._heat = heat
        self._mean, self._slack = mean, slack * mean
        self._headroom: Numbers = mean - heat.loads
        self._headroom[me] = 0.0
        self._rooms = heat.rooms.copy()

    def choose(self, each: _Group) -> tuple[str, ...]:
        share = each.rate / each.wants
        count = each.wants - 1
        crowded = [index for index in each.held if self._is_surplus(each.group, index)]
        crowded = crowded[: max(1, len(each.held) // _LEAVING_PART)]
        settled = [index for index in each.held if index not in crowded]
        # The busiest go first; of equals the later in name, as everywhere.
        kept = sorted(settled, key=lambda index: (-self._headroom[index], index))[:count]
        chosen = [*kept, *self._draw(each, each.held, share, count - len(kept))]
        # What leaves a crowded node is there until it is made elsewhere.
        there = sum(index in each.made for index in kept)
        chosen += crowded[: max(0, count - there)]
        return tuple(self._heat.names[index] for index in sorted(chosen))

    def _is_surplus(self, group: int, index: int) -> bool:
        if self._headroom[index] >= -_CROWDED_SLACKS * self._slack:
            return False
        return group in self._heat.surplus(index, self._mean + self._slack)

    def _draw(self, each: _Group, kept: Iterable[int], share: float, count: int) -> list[int]:
        if count <= 0:
            return []
        fits = (self._headroom > 0) & (self._rooms >= each.size)
        fits[list(kept)] = False
        candidates = np.flatnonzero(fits)
        scores = self._headroom[candidates] / -np.log(_uniform(each.group, self._heat)[candidates])
        drawn = candidates[np.argsort(-scores, kind="stable")[:count]]
        self._headroom[drawn] -= share
        self._rooms[drawn] -= each.size
        return [int(index) for index in drawn]


def _uniform(group: int, heat: HeatMap) -> Numbers:
    """A number in (0, 1) for the group on each node, always the same."""
    bits = (heat.seeds ^ np.uint64(group)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    numbers: Numbers = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return numbers
