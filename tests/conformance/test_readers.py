"""Clients that only read find what others have written, and change nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import Code, Segments, UsageError
from transports import TRANSPORTS

PAGE, COUNT = 5000, 12
KEYS = [f"k{index}" for index in range(COUNT)]
BLOCKS = [(key, index * PAGE) for index, key in enumerate(KEYS)]


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, size, dtype=np.uint8)


@pytest.fixture
def written(connect: Any) -> np.ndarray:
    """What a writer has put under KEYS."""
    data = noise(PAGE * COUNT)
    assert connect(transport="tcp").write_cache(data, BLOCKS, PAGE).wait().all_ok
    return data


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_reader_reads_looks_up_and_leases(
    connect: Any, written: np.ndarray, transport: str
) -> None:
    reader = connect(transport=transport, read_only=True)
    assert reader.transport == transport
    assert reader.exists([*KEYS, "none"]) == [True] * COUNT + [False]
    assert reader.match_prefix([*KEYS, "none"]) == COUNT
    lookup = reader.lookup(KEYS, lease_s=30)
    assert lookup.wait() == COUNT
    assert any(lookup.lease_ids)
    target = np.zeros_like(written)
    assert reader.read_cache(target, BLOCKS, PAGE).wait().all_ok
    assert np.array_equal(target, written)
    part = np.zeros(100, np.uint8)
    place = np.array([[part.ctypes.data]], np.uint64)
    batch = reader.read_segments(["k1"], Segments(place, 100), value_offset=8, value_bytes=PAGE)
    assert batch.wait().all_ok
    assert np.array_equal(part, written[PAGE + 8 : PAGE + 108])
    reader.renew(lookup.lease_ids, 10)
    reader.release(lookup.lease_ids)
    assert reader.read_cache(target[:PAGE], [("none", 0)], PAGE).wait() == [Code.MISSING]
    assert reader.stats()["client_violations"] == 0


def writes(client: infinistore.Client, data: np.ndarray) -> list[Callable[[], object]]:
    place = np.array([[data.ctypes.data]], np.uint64)
    return [
        lambda: client.write_cache(data, BLOCKS, PAGE, on_exists="replace"),
        lambda: client.write_cache(data, [("new", 0)], PAGE),
        lambda: client.write_segments(["new"], Segments(place, PAGE)),
        lambda: client.delete(KEYS),
        lambda: client.abort(KEYS),
    ]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_reader_refuses_to_write_and_says_why(
    connect: Any, written: np.ndarray, transport: str
) -> None:
    reader = connect(transport=transport, read_only=True)
    for write in writes(reader, np.zeros_like(written)):
        with pytest.raises(UsageError, match=r"read_only=True .*connect without it to write"):
            write()
    reader.sync()
    target = np.zeros_like(written)
    assert reader.read_cache(target, BLOCKS, PAGE).wait().all_ok
    assert np.array_equal(target, written)
    assert reader.exists(["new"]) == [False]


def pool_rights() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(line.split()[1] for line in lines if "memfd:infinistore-pool" in line)


def test_a_reader_maps_the_pool_for_reading_only(connect: Any, written: np.ndarray) -> None:
    before = pool_rights()
    reader = connect(transport="shm", read_only=True)
    target = np.zeros_like(written)
    assert reader.read_cache(target, BLOCKS, PAGE).wait().all_ok
    added = pool_rights()
    for rights in before:
        added.remove(rights)
    assert added
    assert set(added) == {"r--s"}
    connect(transport="shm")
    assert "rw-s" in pool_rights()


def test_the_environment_makes_readers_too(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFINISTORE_READ_ONLY", "1")
    with pytest.raises(UsageError, match="INFINISTORE_READ_ONLY"):
        connect().delete(["k"])
