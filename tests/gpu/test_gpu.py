"""Blocks between a GPU and the pool, on a GPU: `make gpu-test`. Skipped where there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore.errors import UsageError
from server_process import ServerProcess

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

LONG_CYCLES = 400_000_000  # some 0.2 s of a GPU's clock


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    process = ServerProcess("--pool=2GiB")
    yield process
    process.stop()


@pytest.fixture(params=["shm", "tcp"])
def conn(request: pytest.FixtureRequest, server: Any) -> Iterator[Any]:
    with infinistore.connect(
        server.url,
        namespace=request.node.name[:200],
        transport=request.param,
    ) as client:
        yield client


def noise(count: int, seed: int = 1) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device="cuda", generator=generator)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.float8_e4m3fn],
)
def test_tensors_of_any_type_come_back_bit_for_bit(conn: Any, dtype: Any) -> None:
    source = noise(1 << 20).view(dtype)
    target = torch.zeros_like(source)
    page = source.numel() // 16
    blocks = [(f"b{i}", i * page) for i in range(16)]
    conn.write_cache(source, blocks, page)
    conn.sync()
    conn.read_cache(target, list(reversed(blocks)), page)
    conn.sync()
    assert torch.equal(source.view(torch.uint8), target.view(torch.uint8))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 100, 4096, 4100, 65536, 65544, (1 << 20) + 8])
def test_blocks_of_any_size_and_place(conn: Any, size: int) -> None:
    count = 13
    source = noise((size + 3) * count + 64, size)
    offsets = [1 + i * (size + 3) for i in range(count)]  # of every alignment
    blocks = [(f"k{i}", offset) for i, offset in enumerate(offsets)]
    conn.write_cache(source, blocks, size, unit="bytes")
    conn.sync()
    on_cpu = np.zeros(size * count, dtype=np.uint8)
    conn.read_cache(on_cpu, [(f"k{i}", i * size) for i in range(count)], size)
    target = torch.zeros_like(source)
    conn.read_cache(target, blocks, size, unit="bytes")
    conn.sync()
    want = source.cpu().numpy()
    for i, offset in enumerate(offsets):
        assert np.array_equal(on_cpu[i * size : (i + 1) * size], want[offset : offset + size])
        assert torch.equal(target[offset : offset + size], source[offset : offset + size])
    outside = torch.ones_like(source, dtype=torch.bool)
    for offset in offsets:
        outside[offset : offset + size] = False
    assert not target[outside].any()


def test_ranges_of_values_and_segments_of_odd_sizes(conn: Any) -> None:
    source = noise(1 << 20, 3)
    base, value, part = source.data_ptr(), 3 * 5 * 1001, 5 * 1001
    keys = [f"v{i}" for i in range(20)]
    for third in range(3):
        addresses = np.array(
            [[base + i * value + third * part + s * 1001 for s in range(5)] for i in range(20)],
            dtype=np.uint64,
        )
        conn.write_segments(
            keys,
            infinistore.Segments(addresses, 1001, source, device=0),
            value_bytes=value,
            value_offset=third * part,
        )
    conn.sync()
    whole = np.zeros(20 * value, dtype=np.uint8)
    conn.read_cache(whole, [(key, i * value) for i, key in enumerate(keys)], value)
    conn.sync()
    assert np.array_equal(whole, source[: 20 * value].cpu().numpy())
    target = torch.zeros(20 * 1001, dtype=torch.uint8, device="cuda")
    rows = np.array([[target.data_ptr() + i * 1001] for i in range(20)], dtype=np.uint64)
    conn.read_segments(
        keys, infinistore.Segments(rows, 1001, target, device=0), value_offset=7 * 1001
    )
    conn.sync()
    want = source[: 20 * value].view(20, value)[:, 7 * 1001 : 8 * 1001].reshape(-1)
    assert torch.equal(target, want)


def test_a_write_takes_what_the_stream_will_have_made(conn: Any) -> None:
    source = torch.zeros(1 << 22, dtype=torch.uint8, device="cuda")
    want = noise(1 << 22, 5)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG_CYCLES)
        source.copy_(want)
        batch = conn.write_cache(source, [("late", 0)], 1 << 22)
        assert not batch.done
    assert conn.exists(["late"]) == [False]  # others go on meanwhile
    batch.wait()
    with torch.cuda.stream(stream):
        source.zero_()
    target = torch.zeros_like(source)
    conn.read_cache(target, [("late", 0)], 1 << 22)
    conn.sync()
    assert torch.equal(target, want)


def test_a_read_waits_until_its_target_is_free(conn: Any) -> None:
    value = noise(1 << 20, 6)
    conn.write_cache(value, [("v", 0)], 1 << 20)
    conn.sync()
    target = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    kept = torch.empty_like(target)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_CYCLES)
    kept.copy_(target)  # of what was there before
    target.fill_(1)
    conn.read_cache(target, [("v", 0)], 1 << 20)
    conn.sync()
    assert torch.equal(target, value)
    assert not kept.any()


def test_writers_and_readers_at_once(server: Any, conn: Any) -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with (
            torch.cuda.stream(stream),
            infinistore.connect(
                server.url,
                namespace="crowd" + conn.transport,
                transport=conn.transport,
            ) as mine,
        ):
            for turn in range(12):
                size = 1 << (12 + turn % 6)
                source = noise(size * 32, 100 * number + turn)
                blocks = [(f"{number}-{turn}-{i}", i * size) for i in range(32)]
                mine.write_cache(source, blocks, size)
                mine.sync()
                target = torch.zeros_like(source)
                mine.read_cache(target, blocks, size)
                mine.sync()
                if not torch.equal(source, target):
                    failures.append(f"{number}-{turn}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_that_is_none_of_a_gpus_is_refused(conn: Any) -> None:
    host = np.zeros(4096, dtype=np.uint8)
    rows = np.array([host.ctypes.data], dtype=np.uint64)
    with pytest.raises(UsageError, match="is not memory of a CUDA device"):
        conn.write_segments(["h"], infinistore.Segments(rows, 4096, host, device=0))
    tensor = torch.zeros(4096, dtype=torch.uint8, device="cuda")
    rows = np.array([tensor.data_ptr()], dtype=np.uint64)
    with pytest.raises(UsageError, match="past the end of its allocation"):
        conn.write_segments(["p"], infinistore.Segments(rows, 1 << 29, tensor, device=0))
    with pytest.raises(infinistore.InfiniStoreError, match="no CUDA device 99"):
        conn.write_segments(["d"], infinistore.Segments(rows, 4096, tensor, device=99))
    assert conn.exists(["h", "p", "d"]) == [False] * 3
