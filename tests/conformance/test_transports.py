"""What is written over one transport is the same over each other: bytes, sums, sizes, ranges."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from infinistore import Code, Segments
from transports import TRANSPORTS

PAIRS = list(product(TRANSPORTS, repeat=2))
SIZES = [1, 8, 13, 4095, 4096, 4104, 100_000, 2**21 + 24]


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize(("writes", "reads"), PAIRS)
@pytest.mark.parametrize("size", SIZES)
def test_values_pass_between_transports(connect: Any, writes: str, reads: str, size: int) -> None:
    writer, reader = connect(transport=writes), connect(transport=reads)
    assert (writer.transport, reader.transport) == (writes, reads)
    source = noise(3 * size)
    blocks = [(f"k{index}", index * size) for index in range(3)]
    assert writer.write_cache(source, blocks, size).wait().all_ok
    target = np.zeros_like(source)
    assert reader.read_cache(target, blocks, size, value_bytes=size).wait().all_ok
    assert np.array_equal(target, source)
    part = np.zeros(size - size // 3, np.uint8)
    assert reader.read_cache(part, [("k1", 0)], part.size, value_offset=size // 3).wait().all_ok
    assert np.array_equal(part, source[size + size // 3 : 2 * size])
    assert reader.write_cache(source, blocks, size).wait() == [Code.EXISTS] * 3


@pytest.mark.parametrize(("writes", "reads"), PAIRS)
@pytest.mark.parametrize("segment_bytes", [1000, 4096, 65536])
def test_sums_of_parts_written_over_one_hold_over_the_other(
    connect: Any, writes: str, reads: str, segment_bytes: int
) -> None:
    """Parts of 3 segments each, written one by one, read whole into segments of half the length."""
    writer, reader = connect(transport=writes), connect(transport=reads)
    parts, per_part = 4, 3
    size = parts * per_part * segment_bytes
    source, target = noise(size), np.zeros(size, np.uint8)
    base = np.uint64(source.ctypes.data)
    for part in (2, 0, 3, 1):
        at = part * per_part * segment_bytes
        places = base + np.arange(at, at + per_part * segment_bytes, segment_bytes, dtype=np.uint64)
        segments = Segments(places.reshape(1, per_part), segment_bytes)
        batch = writer.write_segments(["k"], segments, value_bytes=size, value_offset=at)
        assert batch.wait().all_ok
    half = segment_bytes // 2
    places = np.arange(0, size, half, dtype=np.uint64) + np.uint64(target.ctypes.data)
    batch = reader.read_segments(["k"], Segments(places.reshape(1, -1), half), value_bytes=size)
    assert batch.wait().all_ok
    assert np.array_equal(target, source)
    assert reader.stats()["client_corrupt"] == 0


def test_auto_takes_shared_memory_on_the_same_machine(connect: Any) -> None:
    client = connect()
    assert client.transport == "shm"
    assert client.server["no_sharing_reason"] == ""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_keys_of_a_namespace_are_the_same_over_each(connect: Any, transport: str) -> None:
    client, other = connect(transport=transport), connect(transport="tcp")
    client.write_cache(noise(64), [("a", 0), ("b", 0)], 64).wait()
    assert other.match_prefix(["a", "b", "c"]) == 2
    assert other.delete(["a"]) == 1
    assert client.exists(["a", "b"]) == [False, True]


@pytest.mark.parametrize(("writes", "reads"), PAIRS)
def test_a_value_outlives_its_writer(connect: Any, writes: str, reads: str) -> None:
    writer = connect(transport=writes)
    source = noise(100_000)
    writer.write_cache(source, [("left", 0)], source.size)
    writer.sync()
    writer.close()
    target = np.zeros_like(source)
    reader = connect(transport=reads)
    assert reader.read_cache(target, [("left", 0)], source.size).wait().all_ok
    assert np.array_equal(target, source)
