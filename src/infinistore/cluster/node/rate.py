"""The bytes a second of background work: a bound on them, and how many they were lately."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

_BURST_S = 0.1


class Rate:
    """So many bytes a second. Debt is allowed, so that a large value passes: who comes after waits.

    `wait_s` decides, `spend` acts.
    """

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = bytes_per_s
        self.spent_bytes = 0
        self._clock = clock
        self._burst = bytes_per_s * _BURST_S
        self._tokens = self._burst
        self._at = clock()

    def wait_s(self, size: int) -> float:
        """Takes `size` bytes; how long to wait before they are moved."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self.bytes_per_s)
        self._at = now
        wait = max(0.0, -self._tokens / self.bytes_per_s)
        self._tokens -= size
        self.spent_bytes += size
        return wait

    async def spend(self, size: int) -> None:
        if wait := self.wait_s(size):
            await asyncio.sleep(wait)


class Meter:
    """Bytes a second from a total that grows, as a server's heat knows them: by a half-life."""

    def __init__(self, half_life_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._decay = math.log(2) / half_life_s
        self._clock = clock
        self._at = clock()
        self._total = self._rate = 0.0

    def rate(self, total: float) -> float:
        """Takes the total as it is now."""
        now = self._clock()
        self._rate *= math.exp(-self._decay * (now - self._at))
        self._rate += (total - self._total) * self._decay
        self._at, self._total = now, total
        return self._rate
