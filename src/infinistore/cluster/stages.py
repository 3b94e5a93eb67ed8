"""Where values are being written in ranges: all ranges of one must meet on the same nodes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from infinistore.cluster.fleet import Fleet
from infinistore.cluster.placement import Ids
from infinistore.cluster.routes import NOBODY, Numbers

# As long as a server keeps a stage without progress (its stage_timeout).
_KEPT_S = 30.0
_GROUPS_MAX = 1 << 14


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a value."""

    value_bytes: int
    offset: int
    bytes: int


@dataclass(slots=True)
class _Stage:
    """A group's values that are being written."""

    # Its nodes, each with the connections to it that were lost before.
    nodes: list[tuple[int, int]]
    used_at_s: float
    sent: dict[Range, int] = field(default_factory=dict)  # of how many keys

    def is_complete(self) -> bool:
        """Whether as many keys have had each range, and the ranges make up whole values."""
        is_whole = {p.value_bytes for p in self.sent} == {sum(p.bytes for p in self.sent)}
        return is_whole and len(set(self.sent.values())) == 1


class Stages:
    """Groups that are being written in ranges, and where. Thread-safe."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._groups: OrderedDict[int, _Stage] = OrderedDict()  # the longest unused first
        self._lock = threading.Lock()

    def lanes(self, ids: Ids, lanes: Numbers, part: Range) -> Numbers:
        """`lanes` for new groups, and for others the nodes that they were written to before.

        NOBODY where what was staged is lost with its connection: the rest of it cannot be
        completed. The group begins anew with the next call.
        """
        now_s = time.monotonic()
        lanes = lanes.copy()
        lost_before: dict[int, int] = {}
        with self._lock:
            self._expire(now_s)
            for group in np.unique(ids):
                rows = ids == group
                stage = self._groups.pop(int(group), None)
                is_known = stage is not None
                if stage is None:
                    first = lanes[rows.argmax()].tolist()
                    nodes = [(n, self._lost(n, lost_before)) for n in first if n != NOBODY]
                    stage = _Stage(nodes, now_s)
                lanes[rows] = NOBODY
                if is_known and self._is_gone(stage, lost_before):
                    continue
                lanes[rows, : len(stage.nodes)] = [number for number, _ in stage.nodes]
                stage.used_at_s = now_s
                stage.sent[part] = stage.sent.get(part, 0) + int(rows.sum())
                if not stage.is_complete():
                    self._groups[int(group)] = stage
        return lanes

    def forget(self, ids: Ids) -> None:
        """What was staged of these groups is given up."""
        with self._lock:
            for group in np.unique(ids):
                self._groups.pop(int(group), None)

    def _expire(self, now_s: float) -> None:
        while self._groups:
            oldest = next(iter(self._groups))
            kept = now_s - self._groups[oldest].used_at_s < _KEPT_S
            if kept and len(self._groups) < _GROUPS_MAX:
                break
            del self._groups[oldest]

    def _lost(self, number: int, known: dict[int, int]) -> int:
        if number not in known:
            member = self._fleet.member(number)
            native = member.native if member is not None else None
            # One that has left never compares equal to what it was.
            known[number] = native.counters()["disconnects"] if native is not None else -1
        return known[number]

    def _is_gone(self, stage: _Stage, known: dict[int, int]) -> bool:
        for number, lost in stage.nodes:
            member = self._fleet.member(number)
            if member is None or not member.is_up() or self._lost(number, known) != lost:
                return True
        return False
