"""One node as this client uses it: its connection, whether it answers, what is on its way to it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from infinistore.client.native import NativeClient
from infinistore.client.sync import Client
from infinistore.cluster.nodes import Node

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 2.0
# For so long after a node has come, what it lacks is also looked for where it was before.
YOUNG_S = 60.0


@dataclass(slots=True)
class Breaker:
    """Open while a node is avoided: from a failure until it has answered a probe."""

    is_open: bool = False
    retry_at_s: float = 0.0
    pause_s: float = _PAUSE_MIN_S
    closed_at_s: float = float("-inf")

    def failed(self, sent_at_s: float, now_s: float) -> bool:
        """Notes a failure of what was sent then; whether that opens it.

        Of what was sent before it last closed, failures are no news.
        """
        if sent_at_s < self.closed_at_s:
            return False
        was_open, self.is_open = self.is_open, True
        if not was_open:
            self.pause_s = _PAUSE_MIN_S
        self.retry_at_s = now_s + self.pause_s
        return not was_open

    def probed(self, answers: bool, now_s: float) -> bool:
        """Notes a probe's end; whether that closes it."""
        if answers:
            was_open, self.is_open = self.is_open, False
            self.closed_at_s = now_s
            return was_open
        self.is_open = True
        self.pause_s = min(2 * self.pause_s, _PAUSE_MAX_S)
        self.retry_at_s = now_s + self.pause_s
        return False

    def is_due(self, now_s: float) -> bool:
        """Whether to probe."""
        return self.is_open and now_s >= self.retry_at_s


class Member:
    """A node's place in one client; it keeps its number, whatever becomes of its connection."""

    def __init__(self, node: Node, number: int, came_at_s: float) -> None:
        self.node = node
        self.number = number
        self.native: NativeClient | None = None  # of the client's namespace
        self.notes: Client | None = None  # of the notes' namespace
        self.notes_at_s = 0.0  # read no sooner
        self.incarnation = 0  # of the last connection
        self.came_at_s = came_at_s
        self.bytes_per_s = 0.0
        self.breaker = Breaker()
        self._lock = threading.Lock()
        self._bytes_in_flight = 0

    def is_up(self) -> bool:
        """Whether calls go to it."""
        return self.native is not None and not self.breaker.is_open

    def is_young(self, now_s: float) -> bool:
        """Whether it has come, or come back, only lately."""
        return now_s - self.came_at_s < YOUNG_S

    def moves(self, change: int) -> None:
        """So many bytes more, or less, are on their way."""
        with self._lock:
            self._bytes_in_flight += change

    def load(self) -> float:
        """Bytes that it is taken to have to do now: ours, and a moment's worth of everybody's."""
        return self._bytes_in_flight + self.bytes_per_s * 0.05
