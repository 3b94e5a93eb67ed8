"""LMCache's own `infinistore` connector, unmodified, with its real backend, on a CPU.

Replaced around it: nothing. Installed without those of its dependencies that need a GPU (cupy,
cuda-python, cufile) or that no module on the way imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

from server_process import ServerProcess

SHAPE = torch.Size([2, 4, 64, 128])  # K and V, layers, tokens, heads
MODEL = "organisation/some-model-7b-instruct"


class Peer:
    """LMCache's connector for one server, and the memory that it fills."""

    def __init__(self, address: str) -> None:
        self.config = LMCacheEngineConfig.from_defaults(
            chunk_size=64,
            max_local_cpu_size=0.25,
            local_cpu=False,
            remote_url=f"infinistore://{address}/?device=mlx5_0",
            remote_serde="naive",
            extra_config={"infinistore_link_type": "LINK_IB"},
        )
        metadata = LMCacheMetadata(
            model_name=MODEL,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=(4, 2, 64, 8, 16),
            chunk_size=64,
        )
        self.backend = LocalCPUBackend(self.config, metadata, dst_device="cpu")
        url = self.config.remote_url
        loop = asyncio.get_running_loop()
        self.connector: Any = CreateConnector(url, loop, self.backend, self.config, metadata)

    def value(self, seed: int) -> tuple[Any, torch.Tensor]:
        """A memory object of LMCache's, and what is in it."""
        data = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
        made = self.backend.allocate(SHAPE, torch.bfloat16, MemoryFormat.KV_2LTD)
        made.tensor.copy_(data)
        return made, data.to(torch.bfloat16)

    async def put(self, number: int) -> torch.Tensor:
        made, data = self.value(number)
        await self.connector.put(key(number), made)
        return data

    async def get(self, number: int) -> torch.Tensor | None:
        found = await self.connector.get(key(number))
        if found is None:
            return None
        data = found.tensor.clone()
        found.ref_count_down()
        return data


def key(number: int) -> CacheEngineKey:
    return CacheEngineKey(MODEL, 1, 0, 0x5EED << 32 | number, torch.bfloat16)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[ServerProcess], Awaitable[Peer]]]:
    made: list[Peer] = []

    async def connect(to: ServerProcess) -> Peer:
        made.append(Peer(to.address))
        return made[-1]

    yield connect
    for peer in made:
        for _ in range(2):  # LMCache closes twice at times
            await peer.connector.close()


async def test_objects_come_back_equal_and_misses_are_misses(
    connect: Any, start_server: Callable[..., ServerProcess]
) -> None:
    peer = await connect(start_server("--pool=256MiB"))
    assert await peer.connector.exists(key(1)) is False
    assert await peer.get(1) is None
    data = await peer.put(1)
    assert await peer.connector.exists(key(1)) is True
    assert peer.connector.exists_sync(key(1)) is True
    got = await peer.get(1)
    assert got is not None
    assert torch.equal(got, data)
    assert await peer.get(2) is None


async def test_sixteen_at_once_and_more(
    connect: Any, start_server: Callable[..., ServerProcess]
) -> None:
    peer = await connect(start_server("--pool=256MiB"))
    numbers = range(100, 164)  # the connector has 16 buffers for each way
    written = await asyncio.gather(*(peer.put(number) for number in numbers))
    read = await asyncio.gather(*(peer.get(number) for number in numbers))
    mixed = await asyncio.gather(
        *(peer.get(number) for number in numbers), *(peer.put(number + 100) for number in numbers)
    )
    for was, got, again in zip(written, read, mixed, strict=False):
        assert got is not None
        assert torch.equal(got, was)
        assert torch.equal(again, was)


async def test_another_process_of_the_engine_finds_them(
    connect: Any, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server("--pool=256MiB")
    data = await (await connect(server)).put(7)
    got = await (await connect(server)).get(7)
    assert got is not None
    assert torch.equal(got, data)


async def test_a_restart_of_the_server_in_the_middle(
    connect: Any, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server("--pool=256MiB")
    port = server.address.rpartition(":")[2]
    peer = await connect(server)
    await peer.put(1)
    server.kill()
    assert await peer.get(1) is None  # an error of the store is a miss to LMCache
    await peer.put(2)
    start_server("--pool=256MiB", f"--port={port}")
    assert await peer.get(1) is None
    data = await peer.put(3)
    got = await peer.get(3)
    assert got is not None
    assert torch.equal(got, data)
