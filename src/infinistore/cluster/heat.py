"""The heat of a node's groups, and that of all nodes together: what spreading decides by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infinistore.cluster.placement import group_id, group_of
from infinistore.cluster.view import Note

# Namespace, key, bytes of the value, bytes of it served a second: a row of the native server.
Row = tuple[bytes, bytes, int, float]
Numbers = npt.NDArray[np.float64]

# A copy that serves less than this part of what it will counts as new: nobody knows of it yet.
_NEW_PART = 0.25


@dataclass(frozen=True, slots=True)
class HotGroup:
    """What a node serves of a group, and the bytes of those values."""

    rate: float  # bytes a second
    size: int  # bytes


def hot_groups(rows: Iterable[Row]) -> dict[int, HotGroup]:
    """The groups of a server's hottest keys, by their ids, whatever the namespaces."""
    found: dict[int, HotGroup] = {}
    for _, key, size, rate in rows:
        group = group_id(group_of(key))
        known = found.get(group)
        found[group] = HotGroup(
            rate + (known.rate if known else 0.0), size + (known.size if known else 0)
        )
    return found


class HeatMap:
    """All nodes that serve, in the order of their names, with what they soon will have to do.

    `loads` is what they say they serve, and what copies that are made already, but not read yet,
    will take over: else two nodes would choose the same idle node for their copies, and each of
    them again in the next round.
    """

    def __init__(self, notes: Iterable[Note]) -> None:
        serving = sorted((n for n in notes if n.state != "leaving"), key=lambda note: note.name)
        self.names = tuple(note.name for note in serving)
        self.index = {name: index for index, name in enumerate(self.names)}
        self.seeds = np.array([group_id(name.encode()) for name in self.names], dtype=np.uint64)
        self.rooms = np.array([note.room_bytes for note in serving], dtype=np.float64)
        self.copies = tuple(note.copies for note in serving)
        self.served = tuple(note.served for note in serving)
        self.loads: Numbers = np.array([note.bytes_per_s for note in serving], dtype=np.float64)
        self._surplus: dict[tuple[int, float], frozenset[int]] = {}
        self.mean = float(self.loads.mean()) if serving else 0.0
        for owner, copies in enumerate(self.copies):
            for group, holders in copies.items():
                self._expect(group, [owner, *self.indexes(holders)])
        np.maximum(self.loads, 0.0, out=self.loads)

    def indexes(self, names: Sequence[str]) -> list[int]:
        """Of those of the nodes that are there."""
        return [self.index[name] for name in names if name in self.index]

    def rate(self, group: int, holders: Sequence[int]) -> float:
        """What these nodes serve of a group."""
        return sum(self.served[index].get(group, 0.0) for index in holders)

    def surplus(self, index: int, load_max: float) -> frozenset[int]:
        """The copies that a node above `load_max` should lose; everybody finds the same ones."""
        if (index, load_max) not in self._surplus:
            left = float(self.loads[index]) - load_max
            own = self.copies[index]
            held = [(rate, group) for group, rate in self.served[index].items() if group not in own]
            chosen = set()
            for rate, group in sorted(held, reverse=True):
                if left > rate / 2:
                    chosen.add(group)
                    left -= rate
            self._surplus[index, load_max] = frozenset(chosen)
        return self._surplus[index, load_max]

    def _expect(self, group: int, holders: Sequence[int]) -> None:
        share = self.rate(group, holders) / len(holders)
        rates = [self.served[index].get(group, 0.0) for index in holders]
        is_new = [rate < _NEW_PART * share for rate in rates]
        old_part = 1 - sum(is_new) / len(holders)
        for index, rate, new in zip(holders, rates, is_new, strict=True):
            self.loads[index] += share - rate if new else (old_part - 1) * rate


def noted(served: Mapping[int, HotGroup], groups: Iterable[int]) -> dict[int, float]:
    """What a node's note says of groups that have copies."""
    return {group: served[group].rate for group in groups if group in served}
