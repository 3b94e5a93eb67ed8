"""What a cache may be made of: every type of torch, any bits, any key, over each transport."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import Code, UsageError
from server_process import ServerProcess
from waiting import until

TRANSPORTS = ("tcp", "shm")
Connect = Callable[..., infinistore.Client]


def torch_types(torch: Any) -> list[Any]:
    """Every dtype once, whatever its aliases."""
    found = {str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_tensor_of_every_type_comes_back_bit_for_bit(connect: Connect, transport: str) -> None:
    torch = pytest.importorskip("torch")
    client = connect(transport=transport)
    raw = torch.from_numpy(np.random.default_rng(2).integers(0, 256, 2048, dtype=np.uint8))
    checked = set()
    for kind in torch_types(torch):
        try:
            source = (raw % 2 if kind is torch.bool else raw).view(kind)
        except (RuntimeError, NotImplementedError):
            continue  # quantized ones cannot be a view of bytes
        target = torch.zeros_like(raw).view(kind)
        half = source.numel() // 2
        name = str(kind)
        client.write_cache(source, [(name + "a", 0), (name + "b", half)], half)
        client.sync()
        client.read_cache(target, [(name + "a", half), (name + "b", 0)], half)
        client.sync()
        swapped = torch.cat([source.view(torch.uint8)[1024:], source.view(torch.uint8)[:1024]])
        assert torch.equal(target.view(torch.uint8), swapped), kind
        checked.add(name.removeprefix("torch."))
    wanted = {"float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"}
    wanted |= {"uint8", "int8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2"}
    assert wanted <= checked


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_bit_of_a_nan_survives(connect: Connect, transport: str) -> None:
    """All 16-bit patterns as bfloat16 and as float16: each NaN, with its payload and sign."""
    torch = pytest.importorskip("torch")
    client = connect(transport=transport)
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for kind in (torch.bfloat16, torch.float16):
        source = patterns.view(kind)
        assert source.isnan().any()
        target = torch.zeros(2**16, dtype=kind)
        blocks = [(f"{kind}-{n}", n * 4096) for n in range(16)]
        client.write_cache(source, blocks, 4096)
        client.sync()
        client.read_cache(target, blocks, 4096)
        client.sync()
        assert torch.equal(target.view(torch.int16), patterns)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_keys_of_every_byte_and_of_random_ones_are_each_their_own(
    connect: Connect, transport: str
) -> None:
    client = connect(transport=transport)
    chance = random.Random(6)
    keys = {bytes([n]) for n in range(256)} | {b"", *(b"\0" * n for n in range(2, 256))} - {b""}
    keys |= {chance.randbytes(chance.randrange(1, 256)) for _ in range(500)}
    keys |= {s.encode() for s in ("/../", "../../etc/passwd", "a b", "\U0001f600", "\u202e", "%00")}
    ordered = sorted(keys)
    source = np.arange(len(ordered), dtype=np.uint64)
    assert client.write_cache(source, [(k, n) for n, k in enumerate(ordered)], 1).wait(20).all_ok
    target = np.zeros_like(source)
    assert client.read_cache(target, [(k, n) for n, k in enumerate(ordered)], 1).wait(20).all_ok
    assert np.array_equal(target, source)
    assert client.match_prefix(ordered) == len(ordered)
    assert client.delete(ordered) == len(ordered)
    for length in (0, 256, 65_536):
        for use in (client.exists, client.delete, client.match_prefix, client.abort):
            with pytest.raises(UsageError, match=f"key 0 has {length} bytes; a key has 1 to 255"):
                use([b"x" * length])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("on_exists", ["keep", "replace"])
def test_a_key_twice_in_a_batch_with_other_bytes_has_one_of_them(
    connect: Connect, transport: str, on_exists: str
) -> None:
    client = connect(transport=transport)
    source = np.concatenate([np.full(4096, n, np.uint8) for n in range(1, 9)])
    blocks = [(f"k{n % 2}", n * 4096) for n in range(8)]
    assert client.write_cache(source, blocks, 4096, on_exists=on_exists).wait(20).all_ok
    target = np.zeros_like(source)
    assert client.read_cache(target, blocks, 4096).wait(20).all_ok
    for n in range(8):
        got = set(target[n * 4096 : (n + 1) * 4096].tolist())
        assert len(got) == 1
        assert got == set(target[n % 2 * 4096 :][:4096].tolist())
        assert got.pop() % 2 != n % 2  # written from blocks of that key
    assert client.delete(["k0", "k1", "k0"]) == 2
    assert client.exists(["k0", "k0", "k1"]) == [False] * 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cache_of_no_bytes_is_refused_and_an_empty_batch_of_it_not_sent(
    connect: Connect, transport: str
) -> None:
    client = connect(transport=transport)
    for nothing in (np.zeros(0, np.float32), b"", np.zeros((4, 0), np.uint8)):
        with pytest.raises(UsageError, match="page_size is 1"):
            client.write_cache(nothing, [("k", 0)], 1)
        with pytest.raises(UsageError, match="page_size is 0"):
            client.write_cache(nothing, [("k", 0)], 0)
    with pytest.raises(UsageError, match="page_size is 0"):
        client.read_cache(bytearray(4096), [("k", 0)], 0)
    assert len(client.write_cache(np.zeros(8), [], 8).wait(10)) == 0
    assert client.exists(["k"]) == [False]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_read_only_and_strided_caches_are_refused_and_untouched(
    connect: Connect, transport: str
) -> None:
    torch = pytest.importorskip("torch")
    client = connect(transport=transport)
    client.write_cache(np.ones(64, np.uint8), [("k", 0)], 64)
    client.sync()
    fixed = np.zeros(64, np.uint8)
    fixed.flags.writeable = False
    for target in (fixed, bytes(64), memoryview(bytearray(64)).toreadonly()):
        with pytest.raises(UsageError, match="read-only"):
            client.read_cache(target, [("k", 0)], 64)
        assert not any(bytes(target))
    grid = torch.arange(4096, dtype=torch.float32).view(64, 64)
    strided = (grid[:, :32], grid[::2], grid.t(), grid[0].expand(8, 64), grid[:, :1])
    for cache in strided:
        for use in (client.write_cache, client.read_cache):
            with pytest.raises(UsageError, match="not contiguous"):
                use(cache, [("k2", 0)], 8)
    for array in (grid.numpy()[:, ::2], grid.numpy().T, np.asfortranarray(grid.numpy())):
        with pytest.raises(UsageError, match="not contiguous"):
            client.write_cache(array, [("k2", 0)], 8)
    # Rows of a tensor are contiguous, and so is a view of one element.
    client.write_cache(grid[3], [("row", 0)], 64)
    client.sync()
    assert client.exists(["k2", "row"]) == [False, True]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_batch_of_which_some_is_missing_holds_nothing_afterwards(
    connect: Connect, server: ServerProcess, transport: str
) -> None:
    client = connect(transport=transport)
    before = server.stats()["sealed_bytes"]
    source = np.ones(64 * 8192, np.uint8)
    blocks = [(f"k{n}", n * 8192) for n in range(64)]
    client.write_cache(source, blocks[::2], 8192)
    client.sync()
    for _ in range(200):  # more than any window: a place that is not given back would be missed
        outcomes = client.read_cache(source, blocks, 8192).wait(20)
        assert outcomes.missing == list(range(1, 64, 2))
    until(lambda: server.stats()["pins"] == 0)
    assert client.delete([key for key, _ in blocks]) == 32
    assert server.stats()["sealed_bytes"] == before


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [1, 2, 4095, 4096, 4097])
def test_batches_around_the_most_that_one_request_carries(
    connect: Connect, server: ServerProcess, transport: str, count: int
) -> None:
    client = connect(transport=transport)
    source = np.arange(count, dtype=np.uint64)
    blocks = [(b"%d" % n, n) for n in range(count)]
    assert list(client.write_cache(source, blocks, 1).wait(20)) == [Code.OK] * count
    target = np.zeros_like(source)
    assert client.read_cache(target, blocks, 1).wait(20).all_ok
    assert np.array_equal(target, source)
    assert client.delete([key for key, _ in blocks]) == count


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_failure_that_was_raised_keeps_no_cache_alive(
    connect: Connect, server: ServerProcess, transport: str
) -> None:
    """An exception and a frame that names it would hold each other until cycles are collected."""
    client = connect(transport=transport)
    other = await infinistore.connect_async(server.url, "keeps", transport=transport)
    gc.disable()
    try:
        cache = np.zeros(4096, np.uint8)
        gone = weakref.ref(cache)
        client.read_cache(cache, [("none", 0)], 4096)
        with contextlib.suppress(infinistore.KeyNotFound):
            client.sync()
        with contextlib.suppress(infinistore.KeyNotFound):
            await other.read_cache(cache, [("none", 0)], 4096)
        del cache
        assert gone() is None
    finally:
        gc.enable()
        await other.close()
