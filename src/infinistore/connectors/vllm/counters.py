"""What the connector counts, and its log lines: each kind at most once a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

COUNTER_NAMES = (
    "blocks_saved",
    "blocks_save_present",  # somebody saved them before
    "blocks_save_failed",
    "blocks_save_skipped",  # saving was paused, or no store was there
    "blocks_loaded",
    "blocks_load_failed",
    "blocks_load_corrupt",  # of those: their bytes did not match their checksum
    "bytes_saved",
    "bytes_loaded",
    "tokens_hit",
    "lookups",
    "lookups_failed",  # late or refused: the request computes
    "weights_epochs",  # begun, or named, since the start
    "requests_unkeyed",  # requests that have no key that we know: not cached
)


class Counters:
    """Counts since the start (`totals`) and since the last `take()`."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(COUNTER_NAMES, 0)
        self._taken = dict(self.totals)

    def add(self, name: str, amount: int = 1) -> None:
        """Adds to one of `COUNTER_NAMES`."""
        self.totals[name] += amount

    def take(self) -> dict[str, int]:
        """What has changed since the last call."""
        fresh = {n: v - self._taken[n] for n, v in self.totals.items() if v != self._taken[n]}
        self._taken = dict(self.totals)
        return fresh


class Warner:
    """Warns of what goes wrong again and again: each message once a second, with a count."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._last: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def warn(self, message: str, *arguments: object) -> None:
        """Logs the message unless it was logged within the last second."""
        now = self._clock()
        if now - self._last.get(message, float("-inf")) < 1.0:
            self._unsaid[message] = self._unsaid.get(message, 0) + 1
            return
        self._last[message] = now
        unsaid = self._unsaid.pop(message, 0)
        more = f" (and {unsaid} more like it)" if unsaid else ""
        self._logger.warning(message + "%s", *arguments, more)
