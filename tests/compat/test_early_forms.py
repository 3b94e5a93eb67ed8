"""The original's calls of 2024 and early 2025: tensors, allocations, single values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import InfinityConnection
from server_process import ServerProcess

torch = pytest.importorskip("torch")

PAGE = 1024  # elements


@pytest.fixture(params=["tcp", "shm"])
def connection(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Any]:
    host, _, port = server.address.rpartition(":")
    config = infinistore.ClientConfig(
        host_addr=host,
        service_port=int(port),
        connection_type=infinistore.TYPE_RDMA,
        transport=request.param,
        namespace=request.node.nodeid[-200:],
    )
    made = InfinityConnection(config)
    made.connect()
    yield made
    made.close()


def pages(count: int) -> list[tuple[str, int]]:
    return [(f"k{index}", index * PAGE) for index in range(count)]


def test_offsets_and_pages_count_elements(connection: Any) -> None:
    source = torch.randn(8 * PAGE).to(torch.bfloat16)
    target = torch.zeros_like(source)
    assert connection.write_cache(source, pages(8), PAGE) is None
    assert connection.sync() is None
    assert connection.read_cache(target, pages(8)[2:5], PAGE) is None
    assert torch.equal(target[2 * PAGE : 5 * PAGE], source[2 * PAGE : 5 * PAGE])
    assert not target[: 2 * PAGE].any()


def test_a_missing_page_is_an_error_of_the_read_itself(connection: Any) -> None:
    # Who decodes reads again until the other side has written.
    with pytest.raises(infinistore.InfiniStoreKeyNotFound):
        connection.read_cache(torch.zeros(PAGE), [("gone", 0)], PAGE)
    connection.sync()


def test_a_tensor_that_is_not_contiguous_is_refused(connection: Any) -> None:
    with pytest.raises(Exception, match="contiguous"):
        connection.write_cache(torch.zeros(8, 8).t(), [("k", 0)], 4)


def test_what_is_allocated_is_seen_only_when_it_is_written(connection: Any) -> None:
    source = torch.randn(4 * PAGE)
    keys = [f"k{index}" for index in range(4)]
    assert connection.register_mr(source) == 0
    blocks = connection.allocate_rdma(keys, PAGE * 4)
    assert blocks.dtype.names == ("rkey", "remote_addr")
    assert [blocks.dtype[name] for name in blocks.dtype.names] == [np.uint32, np.uint64]
    assert not any(connection.check_exist(key) for key in keys)
    offsets = [3 * PAGE, 2 * PAGE, PAGE, 0]
    assert connection.rdma_write_cache(source, offsets, PAGE, blocks) == 0
    connection.sync()
    target = torch.zeros_like(source)
    connection.read_cache(target, list(zip(keys, offsets, strict=True)), PAGE)
    assert torch.equal(target, source)
    with pytest.raises(Exception, match="allocate_rdma"):
        connection.rdma_write_cache(source, offsets, PAGE, blocks)


async def test_the_forms_of_early_2025_are_awaited(connection: Any) -> None:
    source = torch.randn(2 * PAGE)
    connection.register_mr(source)
    blocks = await connection.allocate_rdma_async(["a", "b"], PAGE * 4)
    # The same name as today's call on pointers; its first argument tells them apart.
    await connection.rdma_write_cache_async(source, [0, PAGE], PAGE, blocks)
    target = torch.zeros_like(source)
    await connection.read_cache_async(target, [("a", 0), ("b", PAGE)], PAGE)
    assert torch.equal(target, source)


async def test_single_values_in_registered_memory(connection: Any) -> None:
    memory = np.arange(3 * 4096, dtype=np.uint8)
    pointer = int(memory.ctypes.data)
    connection.register_mr(pointer, memory.nbytes)
    connection.rdma_write_cache_single("a", pointer, 100)
    await connection.rdma_write_cache_single_async("b", pointer + 100, 50, unknown=1)
    connection.read_cache_single("a", pointer + 4096, 4096)
    await connection.read_cache_single_async("b", pointer + 8192, 4096)
    assert np.array_equal(memory[4096:4196], memory[:100])
    assert np.array_equal(memory[8192:8242], memory[100:150])
    with pytest.raises(infinistore.lib.InfiniStoreKeyNotFound):
        await connection.read_cache_single_async("gone", pointer, 4096)


def test_local_gpu_connections_are_to_this_machine(server: ServerProcess) -> None:
    host, _, port = server.address.rpartition(":")
    elsewhere = infinistore.ClientConfig(
        host_addr="192.0.2.1", service_port=1, connection_type=infinistore.TYPE_LOCAL_GPU
    )
    with pytest.raises(Exception, match="localhost"):
        InfinityConnection(elsewhere)
    config = infinistore.ClientConfig(
        host_addr=host, service_port=int(port), connection_type=infinistore.TYPE_LOCAL_GPU
    )
    connection = InfinityConnection(config)
    connection.connect()
    assert connection.local_connected is True
    source = torch.randn(PAGE)
    assert connection.local_gpu_write_cache(source, [("local", 0)], PAGE) == 0
    connection.sync()
    target = torch.zeros(PAGE)
    connection.read_cache(target, [("local", 0)], PAGE)
    assert torch.equal(target, source)
    with pytest.raises(Exception, match="Already connected to local instance"):
        connection.connect()
    connection.close()


def test_set_up_helpers_are_there() -> None:
    infinistore.check_supported()
    with infinistore.DisableTorchCaching():
        pass
