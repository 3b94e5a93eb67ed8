"""Waiting in tests for what another thread, process or the kernel does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    condition: Callable[[], object],
    timeout_s: float = 10.0,
    message: str = "it did not happen in time",
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, message
        time.sleep(0.002)
