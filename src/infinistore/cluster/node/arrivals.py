"""When nodes came, as one of them sees it: what comes too often is left alone for a while."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from infinistore.cluster.moves import restless
from infinistore.cluster.nodes import Node

# A node that came more often than this in so long is restless: it is a node and serves what clients
# write to it, but nobody moves its share to it, or gives it copies, before it has come to rest.
RESTLESS_COUNT = 3
RESTLESS_S = 60.0


class Arrivals:
    """Of the nodes in view, and of those that were in it lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._there: dict[str, int] = {}  # names and incarnations
        self._times: dict[str, deque[float]] = {}

    def see(self, nodes: Iterable[Node]) -> None:
        """Takes who is there now. A node's next incarnation has come anew; 0 is not known yet."""
        now_s = self._clock()
        there = {node.name: node.incarnation for node in nodes}
        for name, incarnation in there.items():
            known = self._there.get(name)
            if known is None or (known and incarnation and known != incarnation):
                times = self._times.setdefault(name, deque(maxlen=RESTLESS_COUNT + 1))
                times.append(now_s)
            there[name] = incarnation or known or 0
        self._there = there
        for name in [n for n, times in self._times.items() if now_s - times[-1] >= RESTLESS_S]:
            del self._times[name]

    def restless(self) -> frozenset[str]:
        """Those who came too often."""
        found = restless(self._times, self._clock(), count_max=RESTLESS_COUNT, window_s=RESTLESS_S)
        return frozenset(found & self._there.keys())
