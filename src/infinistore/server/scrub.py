"""A scrub of the pool: all values compared with their checksums, at a bounded rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from infinistore.errors import ConfigError
from infinistore.server.native import NativeServer
from infinistore.units import parse_bytes

DEFAULT_RATE = "1GB/s"
RATE_MIN = 1_000_000
# Bytes are summed in short bursts by a thread of asyncio's pool, never by a worker.
STEP_S = 0.01
STEP_BYTES_MIN, STEP_BYTES_MAX = 64 * 1024, 16 * 1024**2
REPORT_S = 0.25


def parse_rate(text: str) -> int:
    """Bytes a second. Raises `ConfigError`."""
    rate = parse_bytes(text.strip().removesuffix("/s"))
    if rate < RATE_MIN:
        raise ConfigError(f"a rate of {text} would take for ever; give at least 1MB/s")
    return rate


async def scrub(server: NativeServer, rate: int) -> AsyncGenerator[dict[str, Any], None]:
    """Progress four times a second; the last of it has `done` and the keys that were damaged."""
    walk = server.scrub()
    step_bytes = max(STEP_BYTES_MIN, min(int(rate * STEP_S), STEP_BYTES_MAX))
    total = server.snapshot().get("sealed_bytes", 0)
    began = due = reported = time.monotonic()
    goes_on = True
    while goes_on:
        goes_on = await asyncio.to_thread(walk.step, step_bytes)
        now = time.monotonic()
        if now - reported >= REPORT_S or not goes_on:
            reported = now
            found = walk.found()
            damaged = found.pop("damaged")
            seconds = round(now - began, 3)
            yield {**found, "total_bytes": total, "seconds": seconds, "done": not goes_on} | (
                {} if goes_on else {"damaged": [{"namespace": s, "key": k} for s, k in damaged]}
            )
        # Time that was lost is not made up for: that would be a burst without any bound.
        due = max(due + step_bytes / rate, now)
        await asyncio.sleep(due - now)
