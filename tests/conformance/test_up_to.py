"""Reads of values whose size the reader does not know, by one body for each transport."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import Code, Segments, UsageError
from server_process import ServerProcess

TRANSPORTS = ("tcp", "shm")
SIZES = [1, 13, 4095, 4096, 70_000, 3 << 20]


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


def write_all(client: infinistore.Client) -> None:
    for size in SIZES:
        client.write_cache(noise(size), [(str(size), 0)], size)
    client.sync()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("page", [4096, 4 << 20])
def test_shorter_values_are_read_whole_and_longer_ones_begun(
    connect: Any, transport: str, page: int
) -> None:
    client = connect(transport=transport)
    write_all(client)
    target = np.full(len(SIZES) * page, 7, np.uint8)
    blocks = [(str(size), index * page) for index, size in enumerate(SIZES)]
    batch = client.read_cache(target, [*blocks, ("gone", 0)], page, up_to=True)
    assert list(batch.wait()) == [Code.OK] * len(SIZES) + [Code.MISSING]
    assert batch.value_bytes == [*SIZES, 0]
    for index, size in enumerate(SIZES):
        got, moved = target[index * page :][:page], min(size, page)
        assert np.array_equal(got[:moved], noise(size)[:moved])
        assert (got[moved:] == 7).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_part_up_to_the_end_of_its_value(connect: Any, transport: str) -> None:
    client = connect(transport=transport)
    write_all(client)
    target = np.zeros(4096, np.uint8)
    batch = client.read_cache(target, [("4096", 0)], 4096, value_offset=4000, up_to=True)
    assert batch.wait().all_ok
    assert np.array_equal(target[:96], noise(4096)[4000:])
    assert not target[96:].any()
    past = client.read_cache(target, [("13", 0)], 4096, value_offset=13, up_to=True)
    assert list(past.wait()) == [Code.SIZE_MISMATCH]


def test_several_segments_for_a_value_of_unknown_size_are_refused(connect: Any) -> None:
    client, target = connect(), np.zeros(4096, np.uint8)
    addresses = np.array([[target.ctypes.data, target.ctypes.data + 2048]], np.uint64)
    with pytest.raises(UsageError, match="one segment"):
        client.read_segments(["k"], Segments(addresses, 2048), up_to=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_awaitable_client_reads_them_too(server: ServerProcess, transport: str) -> None:
    async with await infinistore.connect_async(server.url, "up to", transport=transport) as client:
        await client.write_cache(noise(13), [("k", 0)], 13)
        target = np.zeros(100, np.uint8)
        assert (await client.read_cache(target, [("k", 0)], 100, up_to=True)).all_ok
        assert np.array_equal(target[:13], noise(13))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("expects", [False, True])
def test_batches_are_awaited_in_any_loop(connect: Any, transport: str, expects: bool) -> None:
    client = connect(transport=transport)
    if expects:
        client.expect_coroutines()

    async def write(round_: int) -> None:
        batches = [client.write_cache(noise(4096), [(f"{round_}-{n}", 0)], 4096) for n in range(20)]
        outcomes = await asyncio.gather(*(batch.wait_async() for batch in batches))
        assert all(each.all_ok for each in outcomes)

    for round_ in range(5):
        asyncio.run(write(round_))
    client.sync()
    assert all(client.exists([f"{r}-{n}" for r in range(5) for n in range(20)]))
