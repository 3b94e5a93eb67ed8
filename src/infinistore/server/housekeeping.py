"""What a server does unasked: keeps the pool below its watermark, tells the operator of changes.

The functions decide from snapshots and are pure; `keep_house` acts on them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from infinistore.server.native import NativeServer
from infinistore.units import format_bytes

logger = logging.getLogger(__name__)

Snapshot = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Shares of the pool: from `start` on evict, down to `stop`."""

    start: float
    stop: float


def bytes_to_evict(snapshot: Snapshot, marks: Watermarks) -> int:
    """How much must leave now; 0 below the start mark."""
    capacity = snapshot.get("capacity_bytes", 0)
    used = capacity - snapshot.get("free_bytes", 0)
    if capacity <= 0 or used < marks.start * capacity:
        return 0
    excess = used - int(marks.stop * capacity)
    return max(0, min(excess, snapshot.get("sealed_bytes", 0)))  # only sealed values can leave


def is_populating(snapshot: Snapshot) -> bool:
    """Whether memory is still being made ready behind the server."""
    return snapshot.get("populated_bytes", 0) < snapshot.get("capacity_bytes", 0)


def notices(before: Snapshot, now: Snapshot) -> list[tuple[int, str]]:
    """What changed that an operator should read in the log: level and line."""
    lines = []
    capacity = now.get("capacity_bytes", 0)
    if capacity < before.get("capacity_bytes", 0):
        text = f"the pool shrank to {format_bytes(capacity)}: no memory could be had for the rest"
        lines.append((logging.WARNING, text))
    if is_populating(before) and not is_populating(now):
        lines.append((logging.INFO, f"all {format_bytes(capacity)} of the pool are populated"))
    if corrupt := now.get("corrupt", 0) - before.get("corrupt", 0):
        lines.append((logging.WARNING, f"{corrupt} corrupt values were found and dropped"))
    return lines


async def keep_house(server: NativeServer, marks: Watermarks, interval_s: float) -> None:
    """Runs until cancelled. A failed round is logged and the next one tries again."""
    before = server.snapshot()
    while True:
        await asyncio.sleep(interval_s)
        try:
            before = await _round(server, marks, before)
        except Exception:  # a server without housekeeping still serves; one that stops does not
            logger.exception("housekeeping failed; it tries again in %gs", interval_s)


async def _round(server: NativeServer, marks: Watermarks, before: Snapshot) -> Snapshot:
    now = server.snapshot()
    for level, line in notices(before, now):
        logger.log(level, "%s", line)
    if wanted := bytes_to_evict(now, marks):
        # In a thread: it takes the shards' locks in turn, and the loop must go on answering.
        freed = await asyncio.to_thread(server.evict, wanted)
        logger.debug("evicted %s of %s wanted", format_bytes(freed), format_bytes(wanted))
    return now
