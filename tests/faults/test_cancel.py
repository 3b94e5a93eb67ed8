"""Thousands of asyncio calls cancelled at any moment: none writes late, none harms another."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

import infinistore
from server_process import ServerProcess
from transports import TRANSPORTS
from waiting import until

PAGE = 4096
COUNT = 16  # blocks of one read
CALLS = 2000
TASKS = 8


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_thousands_of_reads_cancelled_at_any_moment(
    server: ServerProcess, transport: str
) -> None:
    client = await infinistore.connect_async(server.url, f"cancel-{transport}", transport=transport)
    source = np.random.default_rng(0).integers(1, 256, COUNT * PAGE, dtype=np.uint8)
    blocks = [(f"k{i}", i * PAGE) for i in range(COUNT)]
    await client.write_cache(source, blocks, PAGE)
    chance = random.Random(5)
    ended = {"cancelled": 0, "done": 0}

    async def read_and_cancel() -> None:
        target = np.zeros(COUNT * PAGE, np.uint8)
        for _ in range(CALLS // TASKS):
            target[:] = 0
            task = asyncio.create_task(client.read_cache(target, blocks, PAGE))
            for _ in range(chance.choice((0, 1, 1, 2, 3, 6, 20))):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 0.001))
            task.cancel()
            try:
                assert (await task).all_ok
                assert np.array_equal(target, source)
                ended["done"] += 1
            except asyncio.CancelledError:
                target[:] = 0  # ours again: what comes later would show
                await asyncio.sleep(0)
                assert not target.any()
                ended["cancelled"] += 1

    await asyncio.wait_for(asyncio.gather(*(read_and_cancel() for _ in range(TASKS))), 50)
    assert sum(ended.values()) == CALLS
    assert ended["cancelled"] > CALLS // 20, ended
    target = np.zeros_like(source)
    assert (await client.read_cache(target, blocks, PAGE)).all_ok
    assert np.array_equal(target, source)
    stats = await client.stats()
    assert (stats["client_disconnects"], stats["protocol_errors"]) == (0, 0)
    until(lambda: server.stats()["pins"] == 0)  # what was on its way when it was cancelled
    await client.close()
