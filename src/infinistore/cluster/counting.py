"""The counters of all nodes as one call."""

from __future__ import annotations

import time
from collections.abc import Sequence

from infinistore.client.native import NativeCall
from infinistore.errors import Code


class Counting:
    """A question for counters in flight, with the interface of the native one."""

    outcomes = b""
    blocks = 0

    def __init__(self, call_id: int, calls: Sequence[NativeCall], others: dict[str, int]) -> None:
        self.id = call_id
        self._calls = calls
        self._others = others
        self.lease_ids: list[int] = []

    @property
    def done(self) -> bool:
        """Whether all have answered, or failed."""
        return all(call.done for call in self._calls)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether they did in time."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        return all(
            call.wait(None if end_s is None else max(0.0, end_s - time.monotonic()))
            for call in self._calls
        )

    def cancel(self) -> None:
        """Asks for an early end."""
        for call in self._calls:
            call.cancel()

    @property
    def failure(self) -> tuple[int, str]:
        """A failure only if nobody has answered."""
        if not self._calls:
            return Code.DISCONNECTED, "no node of the cluster answers"
        failures = [call.failure for call in self._calls]
        return min(failures, key=lambda failure: failure[0] != Code.OK)

    @property
    def counters(self) -> dict[str, int]:
        """The sums over the nodes that have answered."""
        sums = dict(self._others)
        for call in self._calls:
            for name, value in call.counters.items():
                sums[name] = sums.get(name, 0) + value
        return sums
