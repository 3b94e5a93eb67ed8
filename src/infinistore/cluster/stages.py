"""Where values are being written in ranges: all ranges of one must meet on the same nodes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

import numpy as np

from infinistore.cluster.fleet import Fleet
from infinistore.cluster.placement import Ids
from infinistore.cluster.routes import NOBODY, Numbers

# As long as a server keeps a stage without progress (its stage_timeout).
_KEPT_S = 30.0
_GROUPS_MAX = 1 << 14

# The nodes of a group, each with the connections to it that were lost before; and when last used.
_Stage = tuple[list[tuple[int, int]], float]


class Stages:
    """Groups that have lately been written in ranges, and where. Thread-safe."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._groups: OrderedDict[int, _Stage] = OrderedDict()  # the longest unused first
        self._lock = threading.Lock()

    def lanes(self, ids: Ids, lanes: Numbers) -> Numbers:
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
                first = lanes[rows.argmax()].tolist()
                stage = self._groups.pop(int(group), None)
                if stage is not None:
                    if any(self._lost(n, lost_before) != lost for n, lost in stage[0]):
                        lanes[rows] = NOBODY
                        continue
                    first = [number for number, _ in stage[0]]
                    lanes[rows] = NOBODY
                    lanes[rows, : len(first)] = first
                nodes = [(n, self._lost(n, lost_before)) for n in first if n != NOBODY]
                self._groups[int(group)] = (nodes, now_s)
        return lanes

    def forget(self, ids: Ids) -> None:
        """What was staged of these groups is given up."""
        with self._lock:
            for group in np.unique(ids):
                self._groups.pop(int(group), None)

    def _expire(self, now_s: float) -> None:
        while self._groups:
            oldest = next(iter(self._groups))
            if len(self._groups) < _GROUPS_MAX and now_s - self._groups[oldest][1] < _KEPT_S:
                break
            del self._groups[oldest]

    def _lost(self, number: int, known: dict[int, int]) -> int:
        if number not in known:
            member = self._fleet.member(number)
            native = member.native if member is not None else None
            # One that has left never compares equal to what it was.
            known[number] = native.counters()["disconnects"] if native is not None else -1
        return known[number]
