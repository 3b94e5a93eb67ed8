"""AIBrix's own InfiniStore connector, unmodified, over both of its ways, on a CPU.

Replaced around it: for RDMA the configuration that `from_envs` makes after asking CUDA for its GPUs
and libibverbs for its devices; the rest is the package's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from aibrix_kvcache import envs
from aibrix_kvcache.l2.connectors.infinistore import InfiniStoreConnector
from aibrix_kvcache.memory import TensorPoolAllocator

import infinistore
from server_process import ServerProcess

BLOCK = 64 * 1024
WAYS = ("TCP", "RDMA")


class Peer:
    """AIBrix's connector for one server, and its memory."""

    def __init__(self, way: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        host, _, port = server.address.rpartition(":")
        executor = ThreadPoolExecutor(4)
        if way == "TCP":
            monkeypatch.setattr(envs, "AIBRIX_KV_CACHE_OL_INFINISTORE_CONNECTION_TYPE", "TCP")
            self.connector = InfiniStoreConnector.from_envs(
                "_conn", executor, addr=host, port=int(port)
            )
        else:
            config = infinistore.ClientConfig(
                host_addr=host,
                service_port=int(port),
                connection_type=infinistore.TYPE_RDMA,
                ib_port=1,
                link_type="Ethernet",
                dev_name="mlx5_0",
            )
            if hasattr(config, "hint_gid_index"):
                config.hint_gid_index = 7
            self.connector = InfiniStoreConnector(config, "_conn", executor)
        self.allocator = TensorPoolAllocator.create(capacity_nbytes=64 * BLOCK, pin_memory=False)
        self.connector.open().raise_if_not_ok()
        if self.connector.feature.rdma:
            self.connector.register_slabs(self.allocator.slabs).raise_if_not_ok()

    def region(self, fill: int | None = None) -> Any:
        made = self.allocator.alloc(BLOCK).get()[0]
        made.block_nbytes = BLOCK
        if fill is not None:
            generator = torch.Generator().manual_seed(fill)
            noise = torch.randint(0, 256, (BLOCK,), dtype=torch.uint8, generator=generator)
            made.to_tensor().view(torch.uint8).reshape(-1)[:BLOCK].copy_(noise)
        return made

    def bytes_of(self, region: Any) -> torch.Tensor:
        return region.to_tensor().view(torch.uint8).reshape(-1)[:BLOCK]


@pytest.fixture(params=WAYS)
async def connect(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[ServerProcess], Peer]]:
    made: list[Peer] = []

    def connect(to: ServerProcess) -> Peer:
        made.append(Peer(request.param, to, monkeypatch))
        return made[-1]

    yield connect
    for peer in made:
        for _ in range(2):  # and a third time from its __del__
            peer.connector.close().raise_if_not_ok()


async def test_regions_come_back_equal_and_misses_are_misses(
    connect: Any, start_server: Callable[..., ServerProcess]
) -> None:
    peer = connect(start_server())
    source, target = peer.region(1), peer.region()
    assert (await peer.connector.exists(b"k")).is_not_found()
    assert (await peer.connector.get(b"k", target)).is_not_found()
    (await peer.connector.put(b"k", source)).raise_if_not_ok()
    assert (await peer.connector.exists(b"k")).is_ok()
    (await peer.connector.get(b"k", target)).raise_if_not_ok()
    assert torch.equal(peer.bytes_of(target), peer.bytes_of(source))
    (await peer.connector.delete(b"k")).raise_if_not_ok()
    assert (await peer.connector.exists(b"k")).is_not_found()
    assert (await peer.connector.get(b"k", target)).is_not_found()


async def test_sixteen_at_once(connect: Any, start_server: Callable[..., ServerProcess]) -> None:
    peer = connect(start_server())
    sources = [peer.region(seed) for seed in range(16)]
    targets = [peer.region() for _ in range(16)]
    keys = [bytes([seed] * 32) for seed in range(16)]
    puts = [peer.connector.put(k, r) for k, r in zip(keys, sources, strict=True)]
    assert all(status.is_ok() for status in await asyncio.gather(*puts))
    gets = [peer.connector.get(k, r) for k, r in zip(keys, targets, strict=True)]
    assert all(status.is_ok() for status in await asyncio.gather(*gets))
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(peer.bytes_of(source), peer.bytes_of(target))


async def test_batches_over_rdma_are_all_or_nothing(
    connect: Any, start_server: Callable[..., ServerProcess]
) -> None:
    peer = connect(start_server())
    if not peer.connector.feature.rdma:
        return  # the connector has them for RDMA only
    sources = [peer.region(seed) for seed in range(4)]
    targets = [peer.region() for _ in range(4)]
    keys = [b"a", b"b", b"c", b"d"]
    put = await peer.connector.mput(keys, sources)
    assert all(status.is_ok() for status in put)
    got = await peer.connector.mget(keys, targets)
    assert all(status.is_ok() for status in got)
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(peer.bytes_of(source), peer.bytes_of(target))
    missing = await peer.connector.mget([b"a", b"gone", b"c", b"d"], targets)
    assert all(status.is_not_found() for status in missing)


async def test_a_restart_of_the_server_in_the_middle(
    connect: Any, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server()
    port = server.address.rpartition(":")[2]
    peer = connect(server)
    source, target = peer.region(1), peer.region()
    (await peer.connector.put(b"k", source)).raise_if_not_ok()
    server.kill()
    assert not (await peer.connector.get(b"k", target)).is_ok()
    start_server(f"--port={port}")
    assert (await peer.connector.get(b"k", target)).is_not_found()
    (await peer.connector.put(b"k", source)).raise_if_not_ok()
    (await peer.connector.get(b"k", target)).raise_if_not_ok()
    assert torch.equal(peer.bytes_of(target), peer.bytes_of(source))
