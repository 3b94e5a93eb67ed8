"""Memory of a GPU by its bare pointer, as the original's clients register it; sizes not known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import infinistore
from fake_driver import DeviceArray, FakeDriver
from server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("no_faults")
Arrays = Callable[..., DeviceArray]
BLOCK = 4096


def noise(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_registered_pointers_of_a_gpu(
    driver: FakeDriver, device_array: Arrays, server: ServerProcess, transport: str
) -> None:
    host, _, port = server.address.rpartition(":")
    config = infinistore.ClientConfig(
        host_addr=host,
        service_port=int(port),
        connection_type=infinistore.TYPE_RDMA,
        transport=transport,
        namespace=f"pointers of a GPU, {transport}",
    )
    connection = infinistore.InfinityConnection(config)
    connection.connect()
    data = noise(8 * BLOCK)
    source, target = device_array(data.nbytes).upload(data), device_array(data.nbytes)
    for each in (source, target):
        assert connection.register_mr(each.address, data.nbytes) == 0
    before = driver.counter("bytes_to_host")
    blocks = [(f"k{n}", n * BLOCK) for n in range(8)]
    assert await connection.rdma_write_cache_async(blocks, BLOCK, source.address) == 200
    assert driver.counter("bytes_to_host") - before == data.nbytes
    assert await connection.rdma_read_cache_async(blocks, BLOCK, target.address) == 200
    assert np.array_equal(target.download(), data)
    # What lies in the host's memory is the host's, though there is a driver.
    here = np.zeros(BLOCK, np.uint8)
    connection.register_mr(int(here.ctypes.data), BLOCK)
    await connection.rdma_read_cache_async([("k3", 0)], BLOCK, int(here.ctypes.data))
    assert np.array_equal(here, data[3 * BLOCK : 4 * BLOCK])
    connection.close()


def test_values_of_unknown_size_into_a_gpu(
    device_array: Arrays, client: infinistore.Client
) -> None:
    sizes = [1, 13, 1000, 4095, 4096, 9000]
    for size in sizes:
        client.write_cache(noise(size), [(str(size), 0)], size)
    client.sync()
    target = device_array(len(sizes) * BLOCK).upload(np.full(len(sizes) * BLOCK, 7, np.uint8))
    blocks = [(str(size), index * BLOCK) for index, size in enumerate(sizes)]
    batch = client.read_cache(target, blocks, BLOCK, up_to=True)
    assert batch.wait().all_ok
    assert batch.value_bytes == sizes
    got = target.download()
    for index, size in enumerate(sizes):
        moved, page = min(size, BLOCK), got[index * BLOCK :][:BLOCK]
        assert np.array_equal(page[:moved], noise(size)[:moved])
        assert (page[moved:] == 7).all()
