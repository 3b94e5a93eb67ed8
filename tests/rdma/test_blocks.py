"""Bytes over RDMA: many blocks, mixed sizes, much at once, memory of every kind."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable

import numpy as np
import pytest

import infinistore
from infinistore import Code
from server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., infinistore.Client]


def noise(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.timeout(1200)  # a virtual machine is slow
def test_a_hundred_thousand_blocks_of_mixed_sizes(rdma_server: StartServer, rdma: Connect) -> None:
    """8 KiB on average; more than the pool holds, so that what is reused is seen too."""
    server = rdma_server("--pool=256MiB", "--evict-start=0.9", "--evict-stop=0.7")
    client = rdma(server, progress_timeout_s=60)
    sizes = (1024, 4096, 8192, 10_000, 17_648)
    per_batch, batches, moved = 200, 500, 0
    for turn in range(batches):
        size = sizes[turn % len(sizes)]
        source = noise(per_batch * size, turn)
        blocks = [(f"{turn}-{index}", index * size) for index in range(per_batch)]
        client.write_cache(source, blocks, size)
        client.sync()
        target = np.zeros_like(source)
        assert client.read_cache(target, blocks, size).wait(60).all_ok
        assert np.array_equal(target, source), f"batch {turn}"
        moved += 2 * source.size
    stats = client.stats()
    assert stats["client_corrupt"] == 0
    assert stats["client_disconnects"] == 0
    # Requests of at most 16 KiB in all go by the stream; none is so small here.
    assert stats["client_rdma_bytes"] == moved


@pytest.mark.timeout(1200)  # a virtual machine is slow
def test_twenty_thousand_blocks_at_once_from_eight_clients(
    rdma_server: StartServer, rdma: Connect
) -> None:
    """All submitted before anyone waits: no queue of a device overflows."""
    server = rdma_server("--pool=512MiB")
    size, count, clients = 8192, 2500, 8
    source = noise(count * size, 1)
    target = [np.zeros_like(source) for _ in range(clients)]
    opened = [
        rdma(server, namespace=str(number), progress_timeout_s=60, requests_max=2)
        for number in range(clients)
    ]
    start = threading.Barrier(clients)
    faults: list[BaseException] = []

    def run(number: int) -> None:
        blocks = [(f"k{index}", index * size) for index in range(count)]
        try:
            start.wait()
            puts = [
                opened[number].write_cache(source, blocks[at : at + 100], size)
                for at in range(0, count, 100)
            ]
            assert {code for batch in puts for code in batch.wait(300)} == {Code.OK}
            gets = [
                opened[number].read_cache(target[number], blocks[at : at + 100], size)
                for at in range(0, count, 100)
            ]
            assert {code for batch in gets for code in batch.wait(300)} == {Code.OK}
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert all(np.array_equal(each, source) for each in target)
    assert sum(client.stats()["client_disconnects"] for client in opened) == 0


def test_memory_that_is_freed_and_given_out_again_under_the_same_address(
    rdma_server: StartServer, rdma: Connect
) -> None:
    """A registration that outlived its pages would read what is not there any more."""
    client = rdma(rdma_server())
    size, count = 65536, 16
    for turn in range(30):
        with mmap.mmap(-1, count * size) as fresh:
            fresh[:] = noise(count * size, turn).tobytes()
            blocks = [(f"{turn}-{index}", index * size) for index in range(count)]
            assert client.write_cache(fresh, blocks, size).wait(60).all_ok
            expected = fresh[:]
        with mmap.mmap(-1, count * size) as other:
            assert client.read_cache(other, blocks, size).wait(60).all_ok
            assert other[:] == expected
    assert client.stats()["client_corrupt"] == 0


def test_memory_that_may_not_be_written_can_be_put(rdma_server: StartServer, rdma: Connect) -> None:
    client = rdma(rdma_server())
    source = noise(16 * 8192, 3).tobytes()
    blocks = [(f"k{index}", index * 8192) for index in range(16)]
    assert client.write_cache(source, blocks, 8192).wait(60).all_ok
    target = bytearray(len(source))
    assert client.read_cache(target, blocks, 8192).wait(60).all_ok
    assert bytes(target) == source


def test_registered_memory_is_used_until_it_is_unregistered(
    rdma_server: StartServer, rdma: Connect
) -> None:
    client = rdma(rdma_server())
    cache = noise(64 * 8192, 4)
    original = cache.copy()
    client.register(cache)
    with pytest.raises(infinistore.InfiniStoreError, match="registered already"):
        client.register(cache[:8192])
    blocks = [(f"k{index}", index * 8192) for index in range(64)]
    assert client.write_cache(cache, blocks, 8192).wait(60).all_ok
    for _ in range(5):
        cache[:] = 0
        assert client.read_cache(cache, blocks, 8192).wait(60).all_ok
        assert np.array_equal(cache, original)
    client.unregister(cache)
    cache[:] = 0
    assert client.read_cache(cache, blocks, 8192).wait(60).all_ok
    assert np.array_equal(cache, original)


def test_scattered_segments_and_ranges(rdma_server: StartServer, rdma: Connect) -> None:
    """Segments of layers, far apart, in and out of registered memory."""
    client = rdma(rdma_server())
    layers, blocks, part = 8, 32, 1024
    kept, plain = noise(layers * blocks * part, 5), noise(layers * blocks * part, 6)
    client.register(kept)
    for name, cache in (("kept", kept), ("plain", plain)):
        base = np.uint64(cache.ctypes.data)
        places = np.array(
            [
                [(layer * blocks + block) * part for layer in range(layers)]
                for block in range(blocks)
            ],
            dtype=np.uint64,
        )
        keys = [f"{name}-{block}" for block in range(blocks)]
        whole = infinistore.Segments(places + base, part, keep=cache)
        assert client.write_segments(keys, whole, value_bytes=layers * part).wait(60).all_ok
        target = np.zeros_like(cache)
        there = infinistore.Segments(places + np.uint64(target.ctypes.data), part, keep=target)
        assert client.read_segments(keys, there, value_bytes=layers * part).wait(60).all_ok
        assert np.array_equal(target, cache)


def test_missing_keys_among_found_ones(rdma_server: StartServer, rdma: Connect) -> None:
    client = rdma(rdma_server())
    size, count = 8192, 32
    source = noise(count * size, 7)
    even = [(f"k{index}", index * size) for index in range(0, count, 2)]
    assert client.write_cache(source, even, size).wait(60).all_ok
    target = np.full_like(source, 9)
    outcomes = client.read_cache(
        target, [(f"k{index}", index * size) for index in range(count)], size
    ).wait(60)
    for index in range(count):
        part = slice(index * size, (index + 1) * size)
        if index % 2 == 0:
            assert outcomes[index] == Code.OK
            assert np.array_equal(target[part], source[part])
        else:
            assert outcomes[index] == Code.MISSING
            assert (target[part] == 9).all()
