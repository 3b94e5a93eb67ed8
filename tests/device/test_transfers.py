"""Blocks between a GPU's memory and the pool, over the double of CUDA's driver: every byte."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import infinistore
from fake_driver import ALWAYS, NOT_SUPPORTED, DeviceArray, FakeDriver
from infinistore import Code, Segments, UsageError
from pool_damage import damage_pool
from server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("no_faults")
Arrays = Callable[..., DeviceArray]
SIZES = (1, 7, 8, 100, 4096, 4100, 65536, (1 << 20) + 8)


def noise(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def copied(driver: FakeDriver, way: str, before: dict[str, int]) -> int:
    return driver.counter(way) - before[way]


def counts(driver: FakeDriver) -> dict[str, int]:
    return {way: driver.counter(way) for way in ("bytes_to_host", "bytes_to_device")}


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_any_size_and_place_come_back(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, size: int
) -> None:
    """Written by the GPU and read by it and by the CPU; written by the CPU and read by the GPU.

    Each reader compares the sums that the writer has made: so theirs are the same.
    """
    count, step = 7, size + 3
    data = noise(step * count + 64, size)
    places = [1 + i * step for i in range(count)]  # of every alignment
    names = [f"gpu-{i}" for i in range(count)]
    before = counts(driver)
    source = device_array(data.nbytes).upload(data)
    client.write_cache(source, list(zip(names, places, strict=True)), size)
    client.sync()
    assert copied(driver, "bytes_to_host", before) == count * size

    on_cpu = np.zeros_like(data)
    client.read_cache(on_cpu, list(zip(names, places, strict=True)), size)
    others = [f"cpu-{i}" for i in range(count)]
    client.write_cache(data, list(zip(others, places, strict=True)), size)
    client.sync()
    target = device_array(data.nbytes).upload(np.zeros_like(data))
    mixed = [(others if i % 2 else names)[i] for i in range(count)]
    client.read_cache(target, list(zip(mixed, places, strict=True)), size)
    client.sync()
    assert copied(driver, "bytes_to_device", before) == count * size

    wanted = np.zeros_like(data)
    for place in places:
        wanted[place : place + size] = data[place : place + size]
    assert np.array_equal(on_cpu, wanted)
    assert np.array_equal(target.download(), wanted)  # and nothing beside the blocks


@pytest.mark.parametrize("segment_bytes", [1, 5, 8, 1001])
def test_values_are_put_together_from_ranges_and_segments(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, segment_bytes: int
) -> None:
    keys, parts, per_key = [f"v{i}" for i in range(6)], 3, 5
    part = per_key * segment_bytes
    value = parts * part
    data = noise(len(keys) * value, segment_bytes)
    source = device_array(data.nbytes).upload(data)
    for index in (2, 0, 1):
        rows = [
            [source.address + k * value + index * part + s * segment_bytes for s in range(per_key)]
            for k in range(len(keys))
        ]
        segments = Segments(np.array(rows, np.uint64), segment_bytes, source, device=0)
        client.write_segments(keys, segments, value_bytes=value, value_offset=index * part)
    client.sync()
    whole = np.zeros_like(data)
    client.read_cache(whole, [(key, i * value) for i, key in enumerate(keys)], value)
    client.sync()
    assert np.array_equal(whole, data)
    # A range that is none of those written, and a segment that begins in one of them.
    begin, length = part - 1, 2
    target = device_array(2 * len(keys)).upload(np.zeros(2 * len(keys), np.uint8))
    rows = [[target.address + 2 * k, target.address + 2 * k + 1] for k in range(len(keys))]
    client.read_segments(
        keys, Segments(np.array(rows, np.uint64), 1, target, device=0), value_offset=begin
    )
    client.sync()
    wanted = data.reshape(len(keys), value)[:, begin : begin + length]
    assert np.array_equal(target.download(), wanted.reshape(-1))


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_engine_writes_the_same_bytes_and_sums(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, size: int
) -> None:
    """Of segments that adjoin and such that do not."""
    count, per_key = 5, 3
    data = noise(count * per_key * (size + 1), size)
    source = device_array(data.nbytes).upload(data)
    for gap in (0, 1):
        offsets = np.arange(count * per_key).reshape(count, per_key) * (size + gap)
        rows = (offsets + source.address).astype(np.uint64)
        segments = Segments(rows, size, source, device=0, by_copy_engine=True)
        keys = [f"{gap}-{i}" for i in range(count)]
        assert client.write_segments(keys, segments).wait(30).all_ok
        back = np.zeros(count * per_key * size, np.uint8)
        blocks = [(key, i * per_key * size) for i, key in enumerate(keys)]
        assert client.read_cache(back, blocks, per_key * size).wait(30).all_ok
        wanted = [data[at : at + size] for at in offsets.reshape(-1)]
        assert np.array_equal(back, np.concatenate(wanted))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [8, 1000])
def test_a_batch_of_ten_thousand_blocks(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, size: int
) -> None:
    count = 10_000
    data = noise(count * size, size)
    source = device_array(data.nbytes).upload(data)
    order = np.random.default_rng(5).permutation(count).tolist()
    blocks = [(f"{n}", n * size) for n in order]
    assert client.write_cache(source, blocks, size).wait(60).all_ok
    target = device_array(data.nbytes)
    outcomes = client.read_cache(target, [*blocks, ("none", 0)], size).wait(60)
    assert outcomes.missing == [count]
    assert np.array_equal(target.download(), data)


def test_the_server_finds_the_sums_that_a_gpu_made_right(
    driver: FakeDriver,
    device_array: Arrays,
    start_server: Callable[..., ServerProcess],
    connect: Any,
) -> None:
    server = start_server()
    for transport, size in itertools.product(("shm", "tcp"), (1, 100, 4100, 70_001)):
        client = connect(server, transport=transport)
        source = device_array(20 * size).upload(noise(20 * size, size))
        blocks = [(f"{transport}-{size}-{i}", i * size) for i in range(20)]
        client.write_cache(source, blocks, size)
        client.sync()
    command = [sys.executable, "-m", "infinistore", "verify", "--admin", server.admin_address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "160 values" in done.stdout
    assert "0 corrupt" in done.stdout


def test_damage_is_found_by_a_gpu_that_reads_it(
    driver: FakeDriver,
    device_array: Arrays,
    start_server: Callable[..., ServerProcess],
    connect: Any,
) -> None:
    for transport in ("shm", "tcp"):
        server = start_server()
        client = connect(server, transport=transport)
        data = noise(4 * 100_000, 9)
        source = device_array(data.nbytes).upload(data)
        blocks = [(f"k{i}", i * 100_000) for i in range(4)]
        client.write_cache(source, blocks, 100_000)
        client.sync()
        damage_pool(server.pid, data[200_000:200_064].tobytes())
        target = device_array(data.nbytes).upload(np.zeros_like(data))
        outcomes = client.read_cache(target, blocks, 100_000).wait(20)
        assert list(outcomes) == [Code.OK, Code.OK, Code.CORRUPT, Code.OK]
        assert client.stats()["client_corrupt"] == 1
        kept = np.ones(data.nbytes, bool)
        kept[200_000:300_000] = False
        assert np.array_equal(target.download()[kept], data[kept])
        assert client.read_cache(target, blocks, 100_000).wait(20).missing == [2]  # it is dropped
        assert client.write_cache(source, blocks, 100_000).wait(20).all_ok  # and cured
        assert client.read_cache(target, blocks, 100_000).wait(20).all_ok
        assert np.array_equal(target.download(), data)
        client.close()
        server.kill()


def test_a_reader_that_does_not_verify_takes_what_is_there(
    driver: FakeDriver,
    device_array: Arrays,
    start_server: Callable[..., ServerProcess],
    connect: Any,
) -> None:
    server = start_server()
    client = connect(server, transport="shm", verify=False)
    data = noise(100_000, 9)
    client.write_cache(device_array(data.nbytes).upload(data), [("k", 0)], 100_000)
    client.sync()
    damage_pool(server.pid, data[:64].tobytes())
    target = device_array(data.nbytes)
    assert client.read_cache(target, [("k", 0)], 100_000).wait(20).all_ok
    assert np.count_nonzero(target.download() != data) == 1


def test_arrays_of_any_type_are_counted_in_their_elements(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    for dtype in ("f2", "f4", "c8", "i8", "b1"):
        items = noise(64 * np.dtype(dtype).itemsize, 4)
        data = (items % 2 == 1 if dtype == "b1" else items.view(dtype)).reshape(8, 8)
        source = device_array((8, 8), dtype).upload(data)
        target = device_array((8, 8), dtype)
        client.write_cache(source, [(f"{dtype}-{row}", 8 * row) for row in range(8)], 8)
        client.sync()
        client.read_cache(target, [(f"{dtype}-{row}", 56 - 8 * row) for row in range(8)], 8)
        client.sync()
        assert target.download().tobytes() == data[::-1].tobytes()


def test_arrays_that_cannot_be_used_say_why(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    source = device_array(4096).upload(noise(4096))
    client.write_cache(source, [("k", 0)], 4096)
    client.sync()
    fixed = device_array(4096, readonly=True)
    with pytest.raises(UsageError, match="read-only CUDA array"):
        client.read_cache(fixed, [("k", 0)], 4096)
    assert client.write_cache(fixed, [("of a read-only one", 0)], 4096).wait(20).all_ok
    with pytest.raises(UsageError, match="page_size is 4097"):
        client.write_cache(source, [("k2", 0)], 4097)
    with pytest.raises(UsageError, match="4095"):
        client.write_cache(source, [("k2", 4095)], 2)

    strided = SimpleNamespace(
        __cuda_array_interface__={
            **source.__cuda_array_interface__,
            "shape": (64, 32),
            "strides": (64, 1),
        }
    )
    with pytest.raises(UsageError, match="not contiguous"):
        client.write_cache(strided, [("k2", 0)], 32)
    assert len(client.write_cache(source, [], 64).wait(20)) == 0
    assert client.exists(["k2"]) == [False]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_asyncio_moves_blocks_too(
    driver: FakeDriver, device_array: Arrays, server: ServerProcess, transport: str
) -> None:
    client = await infinistore.connect_async(server.url, f"aio-{transport}", transport=transport)
    await client.prepare_device(0)
    data = noise(64 * 4096)
    blocks = [(f"k{i}", i * 4096) for i in range(64)]
    source = device_array(data.nbytes).upload(data)
    assert (await client.write_cache(source, blocks, 4096)).all_ok
    target = device_array(data.nbytes)
    assert (await client.read_cache(target, blocks, 4096)).all_ok
    assert np.array_equal(target.download(), data)
    await client.close()


def test_values_go_from_one_gpu_to_another(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    data = noise(32 * 4100)
    blocks = [(f"k{i}", i * 4100) for i in range(32)]
    client.write_cache(device_array(data.nbytes).upload(data), blocks, 4100)
    client.sync()
    target = device_array(data.nbytes, device=1)
    client.read_cache(target, blocks, 4100)
    client.sync()
    assert np.array_equal(target.download(), data)


def test_all_that_was_shown_to_gpus_is_given_back(
    driver: FakeDriver, device_array: Arrays, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server("--pool=256MiB")
    before = driver.counter("live_events")
    pinned: list[int] = []
    for _ in range(3):
        with infinistore.connect(server.url, transport="shm") as client:
            source = device_array(1 << 20)
            client.write_cache(source, [(f"k{i}", i << 14) for i in range(64)], 1 << 14)
            client.sync()
            assert 0 < driver.counter("registered_bytes") < server.pool_bytes
            client.prepare_device(0)
            client.prepare_device(1)
            assert driver.counter("registered_bytes") >= server.pool_bytes
            client.delete([f"k{i}" for i in range(64)])
        assert driver.counter("registered_bytes") == 0
        assert driver.counter("live_events") == before
        pinned.append(driver.counter("pinned_bytes"))
    assert pinned[1:] == pinned[:1] * 2  # kept for the next, and no more each time


def test_a_pool_that_cuda_does_not_take_is_reached_by_way_of_pinned_memory(
    driver: FakeDriver, device_array: Arrays, connect: Any
) -> None:
    client = connect(transport="shm")
    driver.fail("cuMemHostRegister_v2", NOT_SUPPORTED, ALWAYS)
    before = counts(driver)
    data = noise(8 * 4100)
    source = device_array(data.nbytes).upload(data)
    blocks = [(f"k{i}", i * 4100) for i in range(8)]
    client.write_cache(source, blocks, 4100)
    client.sync()
    target = device_array(data.nbytes)
    client.read_cache(target, blocks, 4100)
    client.sync()
    assert np.array_equal(target.download(), data)
    assert driver.counter("registered_bytes") == 0
    assert copied(driver, "bytes_to_host", before) == data.nbytes
    assert copied(driver, "bytes_to_device", before) == data.nbytes


@pytest.mark.parametrize("is_taken", [True, False])
def test_who_only_reads_registers_the_pool_for_reading_or_stages(
    driver: FakeDriver, device_array: Arrays, connect: Any, is_taken: bool
) -> None:
    data = noise(8 * 4100)
    blocks = [(f"k{i}", i * 4100) for i in range(8)]
    connect(transport="tcp").write_cache(data, blocks, 4100).wait()
    reader = connect(transport="shm", read_only=True)
    if not is_taken:
        driver.fail("cuMemHostRegister_v2", NOT_SUPPORTED, ALWAYS)
    target = device_array(data.nbytes)
    assert reader.read_cache(target, blocks, 4100).wait().all_ok
    assert np.array_equal(target.download(), data)
    assert (driver.counter("registered_bytes") > 0) == is_taken
    with pytest.raises(UsageError, match="read_only"):
        reader.write_cache(target, blocks, 4100)
