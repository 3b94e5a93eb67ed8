"""Beyond 4 GiB: blocks far into a cache, and sizes and offsets that 32 bits would cut."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest

import infinistore
from infinistore import Blocks, Code, Segments, SizeMismatchError, TooLargeError, UsageError
from infinistore.client.arguments import VALUE_BYTES_MAX
from transports import TRANSPORTS

GIB = 2**30
PAGE = 4096
Connect = Callable[..., infinistore.Client]


@pytest.fixture
def sparse() -> np.ndarray:
    """9 GiB of memory of which nothing is touched, and so nothing is there."""
    no_reserve = 0x4000  # MAP_NORESERVE, which mmap names only from Python 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return np.frombuffer(mmap.mmap(-1, 9 * GIB, flags=flags), np.uint8)


# Around every place at which 32 bits, signed or not, would wrap.
OFFSETS = [0, 2**31 - PAGE, 2**31, 2**32 - PAGE, 2**32 - 7, 2**32 + PAGE, 2**33, 9 * GIB - PAGE]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocks_beyond_4_gib_of_a_cache_are_those(
    connect: Connect, sparse: np.ndarray, transport: str
) -> None:
    client = connect(transport=transport)
    chance = np.random.default_rng(4)
    values = [chance.integers(0, 256, PAGE, dtype=np.uint8) for _ in OFFSETS]
    for offset, value in zip(OFFSETS, values, strict=True):
        sparse[offset : offset + PAGE] = value
    kept = [sparse[offset : offset + PAGE].copy() for offset in OFFSETS]  # two overlap by 7 bytes
    blocks = [(f"k{n}", offset) for n, offset in enumerate(OFFSETS)]
    assert client.write_cache(sparse, blocks, PAGE).wait(30).all_ok
    small = np.zeros(len(OFFSETS) * PAGE, np.uint8)
    near = [(f"k{n}", n * PAGE) for n in range(len(OFFSETS))]
    assert client.read_cache(small, near, PAGE).wait(30).all_ok
    assert np.array_equal(small, np.concatenate(kept))
    # And back to other places beyond 4 GiB; as arrays, and in elements of a larger type.
    words = sparse.view(np.float64)
    there = [(9 * GIB - (n + 2) * PAGE) // 8 for n in range(len(OFFSETS))]
    keys = [key for key, _ in blocks]
    assert client.read_cache(words, Blocks(keys, np.array(there)), PAGE // 8).wait(30).all_ok
    for at, value in zip(there, kept, strict=True):
        assert np.array_equal(sparse[8 * at : 8 * at + PAGE], value)
    with pytest.raises(UsageError, match=f"offset {9 * GIB - PAGE + 1}"):
        client.write_cache(sparse, [("k", 9 * GIB - PAGE + 1)], PAGE)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_torch_tensor_beyond_4_gib(connect: Connect, sparse: np.ndarray, transport: str) -> None:
    torch = pytest.importorskip("torch")
    client = connect(transport=transport)
    tensor = torch.from_numpy(sparse).view(torch.bfloat16)
    at = [5, 2**31 + 3, 2**32 + 9]  # elements of two bytes
    for n, start in enumerate(at):
        tensor[start : start + 1000] = n + 1
    assert (
        client.write_cache(tensor, [(f"t{n}", s) for n, s in enumerate(at)], 1000).wait(30).all_ok
    )
    target = torch.zeros(3000, dtype=torch.bfloat16)
    assert client.read_cache(target, [(f"t{n}", n * 1000) for n in range(3)], 1000).wait(30).all_ok
    assert [set(row.tolist()) for row in target.view(3, 1000)] == [{1.0}, {2.0}, {3.0}]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_value_of_more_than_4_gib_is_refused_by_its_whole_size(
    connect: Connect, transport: str
) -> None:
    """Its low 32 bits would fit the pool of 64 MiB."""
    client = connect(transport=transport)
    source = np.ones(PAGE, np.uint8)
    for value_bytes in (2**32 + PAGE, 2**33 + PAGE, 2**40, 2**63 + PAGE, 2**64 - 1):
        batch = client.write_cache(source, [("huge", 0)], PAGE, value_bytes=value_bytes)
        assert list(batch.wait(10)) == [Code.TOO_LARGE], value_bytes
        with pytest.raises(TooLargeError):
            raise batch.error() or AssertionError
    # The same for where in a value a range lies.
    client.write_cache(source, [("k", 0)], PAGE)
    client.sync()
    target = np.zeros(PAGE, np.uint8)
    for offset in (2**32, 2**32 + 1, 2**40, 2**63, 2**64 - PAGE):
        batch = client.read_cache(target, [("k", 0)], PAGE, value_offset=offset)
        assert list(batch.wait(10)) == [Code.SIZE_MISMATCH], offset
    for value_bytes in (2**32 + PAGE, 2**63 + PAGE):
        batch = client.read_cache(target, [("k", 0)], PAGE, value_bytes=value_bytes)
        assert list(batch.wait(10)) == [Code.SIZE_MISMATCH], value_bytes
        with pytest.raises(SizeMismatchError):
            raise batch.error() or AssertionError
    assert not target.any()
    assert client.stats()["protocol_errors"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_block_of_more_than_4_gib_is_refused_before_anything_is_sent(
    connect: Connect, sparse: np.ndarray, transport: str
) -> None:
    client = connect(transport=transport)
    for size in (VALUE_BYTES_MAX + 1, 2**32, 2**32 + PAGE, 9 * GIB):
        for use in (client.write_cache, client.read_cache):
            with pytest.raises(UsageError, match="in parts"):
                use(sparse, [("k", 0)], size)
    address = np.array([sparse.ctypes.data], np.uint64)
    with pytest.raises(UsageError, match="in parts"):
        client.write_segments(["k"], Segments(address, 2**32 + PAGE, sparse))
    with pytest.raises(UsageError, match="value_bytes is 18446744073709551616"):
        client.write_cache(sparse, [("k", 0)], PAGE, value_bytes=2**64, value_offset=2**64)
    assert client.exists(["k"]) == [False]
