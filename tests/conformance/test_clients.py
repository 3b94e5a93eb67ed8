"""One contract of the client, by one body, for each transport and for both clients."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import Blocks, Code, KeyNotFound, Segments, SizeMismatchError, UsageError
from server_process import ServerProcess

PAGE = 4096
TRANSPORTS = ("tcp", "shm")
CLIENTS = ("sync", "async")


class Subject:
    """Either client behind the verbs of both: writes and reads return outcomes, or raise."""

    def __init__(self, url: str, namespace: str, transport: str, kind: str) -> None:
        self.loop = asyncio.new_event_loop() if kind == "async" else None
        if self.loop is None:
            self.client: Any = infinistore.connect(url, namespace, transport=transport)
        else:
            connecting = infinistore.connect_async(url, namespace, transport=transport)
            self.client = self.loop.run_until_complete(connecting)

    def run(self, result: Awaitable[Any] | Any) -> Any:
        return result if self.loop is None else self.loop.run_until_complete(result)

    def _moved(self, submitted: Any) -> Any:
        if self.loop is not None:
            return self.run(submitted)
        self.client.sync()
        return submitted.wait()

    def write(self, cache: Any, blocks: Any, page: int = PAGE, **how: Any) -> Any:
        return self._moved(self.client.write_cache(cache, blocks, page, **how))

    def read(self, cache: Any, blocks: Any, page: int = PAGE, **how: Any) -> Any:
        return self._moved(self.client.read_cache(cache, blocks, page, **how))

    def write_segments(self, keys: Any, segments: Segments, **how: Any) -> Any:
        return self._moved(self.client.write_segments(keys, segments, **how))

    def read_segments(self, keys: Any, segments: Segments, **how: Any) -> Any:
        return self._moved(self.client.read_segments(keys, segments, **how))

    def lookup(self, keys: Any, **how: Any) -> Any:
        found = self.run(self.client.lookup(keys, **how))
        if self.loop is None:
            found.wait()
        return found

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self.client, verb)
        return lambda *values, **named: self.run(method(*values, **named))

    def close(self) -> None:
        self.run(self.client.close())
        if self.loop is not None:
            self.loop.close()


@pytest.fixture(params=[(t, c) for t in TRANSPORTS for c in CLIENTS], ids="-".join)
def subject(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Subject]:
    transport, kind = request.param
    made = Subject(server.url, request.node.nodeid[-200:], transport, kind)
    yield made
    made.close()


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def pages(prefix: str, count: int) -> list[tuple[str, int]]:
    return [(f"{prefix}{index}", index * PAGE) for index in range(count)]


def test_the_transport_is_the_one_asked_for(
    subject: Subject, server: ServerProcess, request: Any
) -> None:
    assert subject.client.transport in request.node.callspec.id
    facts = subject.client.server
    assert facts["pool_bytes"] == server.pool_bytes
    assert facts["incarnation"] > 0
    assert facts["version"]


def test_bytes_come_back_equal_and_only_where_they_belong(subject: Subject) -> None:
    source = noise(20 * PAGE)
    blocks = pages("k", 20)
    assert list(subject.write(source, blocks)) == [Code.OK] * 20
    target = noise(20 * PAGE, 1)
    before = target.copy()
    assert subject.read(target, blocks[3:7]).all_ok
    assert np.array_equal(target[3 * PAGE : 7 * PAGE], source[3 * PAGE : 7 * PAGE])
    assert np.array_equal(target[: 3 * PAGE], before[: 3 * PAGE])
    assert np.array_equal(target[7 * PAGE :], before[7 * PAGE :])


def test_a_key_that_is_there_moves_nothing(subject: Subject) -> None:
    subject.write(noise(PAGE, 1), [("k", 0)])
    outcomes = subject.write(noise(PAGE, 2), [("k", 0)])
    assert list(outcomes) == [Code.EXISTS]
    assert outcomes.all_ok
    target = np.zeros(PAGE, np.uint8)
    subject.read(target, [("k", 0)])
    assert np.array_equal(target, noise(PAGE, 1))


def test_replacing_swaps_the_value_even_for_one_of_another_size(subject: Subject) -> None:
    subject.write(noise(PAGE, 1), [("k", 0)])
    subject.write(noise(2 * PAGE, 2), [("k", 0)], 2 * PAGE, on_exists="replace")
    target = np.zeros(2 * PAGE, np.uint8)
    subject.read(target, [("k", 0)], 2 * PAGE)
    assert np.array_equal(target, noise(2 * PAGE, 2))


def test_another_size_for_a_key_is_an_error_of_that_key_only(subject: Subject) -> None:
    subject.write(noise(PAGE), [("k", 0)])
    with pytest.raises(SizeMismatchError) as caught:
        subject.write(noise(3 * PAGE), [("k", 0), ("other", 0)], 2 * PAGE)
    assert list(caught.value.outcomes or ()) == [Code.SIZE_MISMATCH, Code.OK]
    assert "'k'" in str(caught.value)
    with pytest.raises(SizeMismatchError):
        subject.read(np.zeros(PAGE, np.uint8), [("k", 0)], value_bytes=2 * PAGE)


def test_missing_keys_are_named_and_their_bytes_untouched(subject: Subject) -> None:
    subject.write(noise(PAGE), [("here", 0)])
    target = np.full(3 * PAGE, 7, np.uint8)
    with pytest.raises(KeyNotFound) as caught:
        subject.read(target, [("gone", 0), ("here", PAGE), (b"\xff\x00", 2 * PAGE)])
    assert caught.value.keys == (b"gone", b"\xff\x00")
    assert list(caught.value.outcomes or ()) == [Code.MISSING, Code.OK, Code.MISSING]
    assert np.array_equal(target[PAGE : 2 * PAGE], noise(PAGE))
    assert (target[:PAGE] == 7).all()
    assert (target[2 * PAGE :] == 7).all()


@pytest.mark.parametrize(
    "key",
    [b"\x00", b"a\x00b", "emoji \U0001f600 \u4f60", b"\xff" * 255, "x" * 255, b"/../..", " "],
    ids=repr,
)
def test_any_bytes_are_a_key(subject: Subject, key: bytes | str) -> None:
    subject.write(noise(PAGE), [(key, 0)])
    assert subject.exists(
        [key, b"no" + (key if isinstance(key, bytes) else key.encode())[:200]]
    ) == [
        True,
        False,
    ]
    target = np.zeros(PAGE, np.uint8)
    subject.read(target, [(key, 0)])
    assert np.array_equal(target, noise(PAGE))
    raw = key.encode() if isinstance(key, str) else key
    assert subject.delete([raw]) == 1  # a str is its UTF-8
    assert subject.delete([raw]) == 0


def test_a_key_twice_in_a_batch_is_one_value(subject: Subject) -> None:
    source = noise(PAGE)
    outcomes = subject.write(source, [("k", 0), ("k", 0), ("k", 0)])
    assert outcomes.all_ok
    target = np.zeros(2 * PAGE, np.uint8)
    assert subject.read(target, [("k", 0), ("k", PAGE)]).all_ok
    assert np.array_equal(target, np.concatenate([source, source]))


def test_nothing_is_a_batch_too(subject: Subject) -> None:
    assert len(subject.write(noise(PAGE), [])) == 0
    assert len(subject.read(noise(PAGE), Blocks([], np.zeros(0, np.uint64)))) == 0
    assert subject.match_prefix([]) == 0
    assert subject.exists([]) == []
    assert subject.delete([]) == 0
    assert subject.lookup([], lease_s=1).lease_id == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_hundred_thousand_keys_are_one_batch(
    start_server: Callable[..., ServerProcess], transport: str, kind: str
) -> None:
    count, size = 100_000, 64  # each takes a page of the pool, 4 KiB
    subject = Subject(start_server("--pool=512MiB").url, "test", transport, kind)
    source = noise(count * size)
    keys = [b"key %d" % index for index in range(count)]
    blocks = Blocks(keys, np.arange(count, dtype=np.uint64) * size)
    assert subject.write(source, blocks, size).all_ok
    assert subject.match_prefix(keys) == count
    found = subject.lookup(keys, group=5, lease_s=10)
    assert (found.blocks, len(found.lease_ids)) == (count // 5, 25)
    target = np.zeros_like(source)
    assert subject.read(target, blocks, size).all_ok
    assert np.array_equal(target, source)
    assert sum(subject.exists(keys)) == count
    assert subject.delete(keys) == count
    subject.close()


@pytest.mark.parametrize("size", [1, 7, 8, 63, 4095, 4097, 65536 + 13, 3 * 2**20 + 5])
def test_values_of_any_size(subject: Subject, size: int) -> None:
    source = noise(2 * size)
    subject.write(source, [("a", 0), ("b", size)], size)
    target = np.zeros(2 * size, np.uint8)
    subject.read(target, [("a", 0), ("b", size)], size)
    assert np.array_equal(target, source)


def test_odd_bits_survive_unchanged(subject: Subject) -> None:
    torch = pytest.importorskip("torch")
    nan = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000], np.uint32).view(np.float32)
    subject.write(nan, [("nan", 0)], 4)
    back = np.zeros(4, np.float32)
    subject.read(back, [("nan", 0)], 4)
    assert back.tobytes() == nan.tobytes()
    for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.int8, torch.bool):
        source = torch.arange(0, 64, dtype=torch.uint8).view(torch.uint8)
        source = (source % 2 if kind is torch.bool else source).view(kind)
        target = torch.zeros(64, dtype=torch.uint8).view(kind)
        blocks = [(str(kind), 0)]
        subject.write(source, blocks, source.numel())
        subject.read(target, blocks, target.numel())
        assert torch.equal(source.view(torch.uint8), target.view(torch.uint8))


def test_offsets_count_elements_or_bytes(subject: Subject) -> None:
    source = np.arange(100, dtype=np.float64)
    subject.write(source, [("elements", 10)], 5)
    subject.write(source, [("bytes", 80)], 40, unit="bytes")
    target = np.zeros(10)
    subject.read(target, [("elements", 0), ("bytes", 5)], 5)
    assert list(target) == [10, 11, 12, 13, 14] * 2


@pytest.mark.parametrize("make", [bytearray, lambda b: memoryview(bytearray(b))], ids=["a", "m"])
def test_plain_buffers_are_caches(subject: Subject, make: Callable[[bytes], Any]) -> None:
    subject.write(bytes(range(100)), [("k", 50)], 10)
    target = make(bytes(20))
    subject.read(target, [("k", 5)], 10)
    assert bytes(target) == bytes(5) + bytes(range(50, 60)) + bytes(5)


def addresses_of(array: np.ndarray, *offsets: int) -> np.ndarray:
    return np.array(offsets, np.uint64) + np.uint64(array.ctypes.data)


@pytest.mark.parametrize("segment_bytes", [4096, 1000, 13])
def test_values_are_gathered_from_segments_and_scattered(
    subject: Subject, segment_bytes: int
) -> None:
    source = noise(8 * segment_bytes)
    order = [5, 0, 3, 6, 1, 2]
    places = addresses_of(source, *(n * segment_bytes for n in order)).reshape(2, 3)
    subject.write_segments(["a", "b"], Segments(places, segment_bytes))
    whole = np.zeros(6 * segment_bytes, np.uint8)
    size = 3 * segment_bytes
    subject.read(whole, [("a", 0), ("b", size)], size)
    expected = np.concatenate([source[n * segment_bytes :][:segment_bytes] for n in order])
    assert np.array_equal(whole, expected)
    back = np.zeros_like(source)
    shift = int(back.ctypes.data) - int(source.ctypes.data)
    there = (places.astype(np.int64) + shift).astype(np.uint64)
    subject.read_segments(["a", "b"], Segments(there, segment_bytes), value_bytes=size)
    for n in range(8):
        part = slice(n * segment_bytes, (n + 1) * segment_bytes)
        assert np.array_equal(back[part], source[part] if n in order else 0 * source[part])


@pytest.mark.parametrize("part", [4096, 24, 13])
def test_a_value_is_written_and_read_in_parts(subject: Subject, part: int) -> None:
    source = noise(6 * part)
    for index in (3, 0, 5, 1, 4):
        at = index * part
        subject.write(source, [("k", at)], part, value_bytes=6 * part, value_offset=at)
        assert subject.exists(["k"]) == [False]
    subject.write(source, [("k", 2 * part)], part, value_bytes=6 * part, value_offset=2 * part)
    assert subject.exists(["k"]) == [True]
    target = np.zeros_like(source)
    for at, size in ((0, 6 * part), (part, 2 * part), (3, 1), (part + 1, 3 * part)):
        subject.read(target, [("k", 0)], size, value_offset=at)
        assert np.array_equal(target[:size], source[at : at + size])


def test_an_aborted_value_is_as_never_begun(subject: Subject) -> None:
    subject.write(noise(PAGE), [("k", 0)], value_bytes=2 * PAGE)
    subject.abort(["k"])
    subject.write(noise(PAGE, 3), [("k", 0)])
    assert subject.exists(["k"]) == [True]


def test_prefixes_are_counted_exactly(subject: Subject) -> None:
    subject.write(noise(6 * PAGE), pages("k", 6))
    keys = [key for key, _ in pages("k", 6)]
    assert subject.match_prefix([*keys, "no", *keys]) == 6
    assert subject.match_prefix(["no", *keys]) == 0
    assert subject.lookup(keys, group=2).blocks == 3
    assert subject.lookup([*keys[:3], "no", *keys], group=2).blocks == 1
    assert subject.lookup([*keys] * 1500, group=3).blocks == 3000


def test_a_lease_pins_what_was_found(subject: Subject) -> None:
    subject.write(noise(4 * PAGE), pages("k", 4))
    keys = [key for key, _ in pages("k", 4)]
    found = subject.lookup([*keys, "no"], lease_s=30)
    assert (found.blocks, len(found.lease_ids)) == (4, 1)
    assert found.lease_id
    assert subject.stats()["leased_keys"] >= 4
    target = np.zeros(4 * PAGE, np.uint8)
    subject.read(target, pages("k", 4), lease_id=found.lease_id)
    assert np.array_equal(target, noise(4 * PAGE))
    subject.renew([found.lease_id], 10)
    subject.release(found.lease_ids)
    assert subject.exists(keys) == [True] * 4  # in order behind the release
    assert subject.lookup(["no"], lease_s=30).lease_id == 0


def test_a_read_waits_for_a_writer(subject: Subject, server: ServerProcess) -> None:
    subject.write(noise(PAGE), [("k", 0)], value_bytes=2 * PAGE)
    with pytest.raises(KeyNotFound):
        subject.read(np.zeros(2 * PAGE, np.uint8), [("k", 0)], 2 * PAGE, wait_s=0.05)
    target = np.zeros(2 * PAGE, np.uint8)
    later = noise(PAGE, 1)
    read = {"cache": target, "blocks": [("k", 0)], "page_size": 2 * PAGE, "wait_s": 20}
    rest = {"value_bytes": 2 * PAGE, "value_offset": PAGE}
    if subject.loop is None:
        reading = subject.client.read_cache(**read)
        subject.client.write_cache(later, [("k", 0)], PAGE, **rest)
        assert reading.wait(10).all_ok
        subject.client.sync()
    else:
        write = subject.client.write_cache(later, [("k", 0)], PAGE, **rest)
        both = asyncio.wait_for(both_of(subject.client.read_cache(**read), write), 10)
        assert subject.run(both)[0].all_ok
    assert np.array_equal(target, np.concatenate([noise(PAGE), later]))


async def both_of(first: Awaitable[Any], second: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(first, second)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_cache_lives_until_its_batch_has_ended(connect: Any, transport: str) -> None:
    client = connect(transport=transport)
    cache = noise(1000 * PAGE)
    gone = weakref.ref(cache)
    batch = client.write_cache(cache, pages("k", 1000), PAGE)
    del cache
    assert batch.wait().all_ok
    target = np.zeros(1000 * PAGE, np.uint8)
    client.read_cache(target, pages("k", 1000), PAGE).wait()
    assert np.array_equal(target, noise(1000 * PAGE))
    del batch
    gc.collect()
    assert gone() is None


def test_dropping_a_batch_that_is_in_flight_is_safe(subject: Subject) -> None:
    for round_ in range(20):
        cache = noise(200 * PAGE, round_)
        batch = subject.client.write_cache(cache, pages(f"{round_}-", 200), PAGE)
        if subject.loop is None:
            subject.client._session.take_pending()
        else:
            batch.close()  # a coroutine that never ran
        del cache, batch
    assert subject.stats()["protocol_errors"] == 0


def test_namespaces_do_not_see_each_other(subject: Subject, server: ServerProcess) -> None:
    subject.write(noise(PAGE), [("k", 0)])
    with infinistore.connect(server.url, "another") as other:
        assert other.exists(["k"]) == [False]


def test_chains_travel(subject: Subject) -> None:
    blocks = pages("k", 3)
    subject.write(noise(3 * PAGE), blocks, parents=[None, "k0", b"k1"], depths=[0, 1, 2])
    assert subject.match_prefix([key for key, _ in blocks]) == 3
    with pytest.raises(UsageError, match="parents"):
        subject.write(noise(3 * PAGE), blocks, parents=["k0"])


def test_a_value_larger_than_the_pool_is_refused(subject: Subject) -> None:
    size = 65 << 20
    with pytest.raises(infinistore.TooLargeError):
        subject.write(np.zeros(size, np.uint8), [("k", 0)], size)
    assert subject.exists(["k"]) == [False]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sync_raises_once_and_is_then_clean(connect: Any, transport: str) -> None:
    client = connect(transport=transport)
    target = np.zeros(PAGE, np.uint8)
    client.read_cache(target, [("no-1", 0)], PAGE)
    client.write_cache(noise(PAGE), [("k", 0)], PAGE)
    client.read_cache(target, [("no-2", 0)], PAGE)
    with pytest.raises(KeyNotFound) as caught:
        client.sync()
    assert caught.value.keys == (b"no-1", b"no-2")
    client.sync()
    seen = client.read_cache(target, [("no-3", 0)], PAGE)
    assert seen.wait().missing == [0]
    client.sync()  # it was waited for
    client.read_cache(target, [("no-4", 0)], PAGE)
    client.write_cache(noise(2 * PAGE), [("k", 0)], 2 * PAGE)
    with pytest.raises(SizeMismatchError):  # worse than a miss
        client.sync()


def test_stats_are_numbers(subject: Subject) -> None:
    subject.write(noise(PAGE), [("k", 0)])
    stats = subject.stats()
    assert stats["client_connects"] >= 1
    assert stats["seals"] >= 1
    assert all(isinstance(value, int) for value in stats.values())
