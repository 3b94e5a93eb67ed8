"""Waiting in tests for what another thread, process or the kernel does."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def until(
    condition: Callable[[], object],
    timeout_s: float = 10.0,
    message: str = "it did not happen in time",
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, message
        time.sleep(0.002)


async def until_async(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """The same, for what the running loop does."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.002)


def freeze(pid: int) -> None:
    """SIGSTOP, until each of its threads stands still: one that runs goes on for a while."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    until(
        lambda: all(
            (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
            for task in tasks.iterdir()
        )
    )
