"""A client used as it must not be: each either works, or says what to do instead."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import Blocks, ConfigError, Segments, UsageError
from server_process import ServerProcess
from waiting import until

PAGE = 4096


def test_a_spawned_process_cannot_be_given_a_client(connect: Any) -> None:
    client = connect()
    for dump in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="connect"):
            dump(client)
    batch = client.write_cache(np.ones(PAGE, np.uint8), [("k", 0)], PAGE)
    with pytest.raises(UsageError, match="pickled"):
        pickle.dumps(batch)
    with pytest.raises(UsageError, match="pickled"):
        pickle.dumps(client.lookup(["k"]))
    process = multiprocessing.get_context("spawn").Process(target=print, args=(client,))
    with pytest.raises(UsageError, match="pass the address"):
        process.start()
    client.sync()


def test_after_close_each_call_says_so(connect: Any) -> None:
    client = connect()
    cache = np.ones(PAGE, np.uint8)
    segments = Segments(np.array([cache.ctypes.data], np.uint64), PAGE)
    client.close()
    client.close()
    for use in (
        lambda: client.write_cache(cache, [("k", 0)], PAGE),
        lambda: client.read_cache(cache, [("k", 0)], PAGE),
        lambda: client.write_segments(["k"], segments),
        lambda: client.read_segments(["k"], segments),
        lambda: client.sync(),
        lambda: client.match_prefix(["k"]),
        lambda: client.lookup(["k"]),
        lambda: client.exists(["k"]),
        lambda: client.delete(["k"]),
        lambda: client.abort(["k"]),
        lambda: client.stats(),
        lambda: client.server,
    ):
        with pytest.raises(UsageError, match=r"closed; connect\(\)"):
            use()
    client.renew([5], 1)
    client.release([5])


def test_closing_ends_what_is_in_flight(connect: Any) -> None:
    client = connect()
    cache = np.ones(4000 * PAGE, np.uint8)
    batches = [
        client.write_cache(cache, [(f"{n}-{i}", i * PAGE) for i in range(4000)], PAGE)
        for n in range(5)
    ]
    waiting = client.read_cache(cache, [("never", 0)], PAGE, wait_s=60)
    client.close()
    for batch in [*batches, waiting]:
        assert batch.done
        assert set(batch.wait(0)) <= {
            infinistore.Code.OK,
            infinistore.Code.CLOSED,
            infinistore.Code.MISSING,
        }


def test_a_dropped_client_ends_its_threads(server: ServerProcess) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    client = infinistore.connect(server.url, "dropped")
    target = np.zeros(PAGE, np.uint8)
    client.write_cache(np.ones(PAGE, np.uint8), [("k", 0)], PAGE).wait()
    batch = client.read_cache(target, [("k", 0)], PAGE, wait_s=1)
    assert threads() > before
    del client
    assert batch.wait(5).all_ok  # a handle keeps the connection
    assert threads() > before
    del batch
    until(lambda: threads() == before)  # a thread that was joined may still be listed for a moment


def test_many_threads_share_one_client(connect: Any) -> None:
    client = connect()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            source = np.full(20 * PAGE, number, np.uint8)
            target = np.zeros_like(source)
            blocks = [(f"{number}-{i}", i * PAGE) for i in range(20)]
            for _ in range(20):
                client.write_cache(source, blocks, PAGE, on_exists="replace").wait(10)
                assert client.read_cache(target, blocks, PAGE).wait(10).all_ok
                assert (target == number).all()
                assert client.match_prefix([key for key, _ in blocks]) == 20
                client.sync(10)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_a_client_is_closed_by_one_thread_while_others_wait(connect: Any) -> None:
    client = connect()
    ended = []

    def wait() -> None:
        batch = client.read_cache(bytearray(PAGE), [("never", 0)], PAGE, wait_s=60)
        ended.append(batch.wait(20))

    # Held by a value that is begun: so the reads have something to wait for.
    client.write_cache(bytes(PAGE), [("never", 0)], PAGE, value_bytes=2 * PAGE).wait()
    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(client._session._pending) < 4:
        threading.Event().wait(0.01)
    client.close()
    for thread in threads:
        thread.join(10)
    assert [list(outcomes) for outcomes in ended] == [[infinistore.Code.CLOSED]] * 4


def test_an_async_client_keeps_to_its_loop(server: ServerProcess) -> None:
    async def make() -> infinistore.AsyncClient:
        return await infinistore.connect_async(server.url, "loops")

    async def use(client: infinistore.AsyncClient) -> None:
        await client.exists(["k"])

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    client = first.run_until_complete(make())
    first.run_until_complete(use(client))
    with pytest.raises(UsageError, match=r"another event loop; call connect_async\(\)"):
        second.run_until_complete(use(client))
    first.run_until_complete(use(client))
    first.run_until_complete(client.close())
    with pytest.raises(UsageError, match="closed"):
        first.run_until_complete(use(client))
    first.close()
    second.close()


async def test_two_async_clients_on_one_loop(server: ServerProcess) -> None:
    clients = [await infinistore.connect_async(server.url, "two") for _ in range(2)]
    cache = np.ones(PAGE, np.uint8)
    await asyncio.gather(
        *(c.write_cache(cache, [(f"{i}", 0)], PAGE) for i in range(50) for c in clients)
    )
    assert await clients[0].match_prefix([f"{i}" for i in range(50)]) == 50
    for client in clients:
        await client.close()


@pytest.mark.parametrize("new_loop", ["asyncio", "uvloop"])
def test_any_event_loop_will_do(server: ServerProcess, new_loop: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop() if new_loop == "uvloop" else asyncio.new_event_loop()

    async def use() -> int:
        async with await infinistore.connect_async(server.url, new_loop) as client:
            cache = np.ones(100 * PAGE, np.uint8)
            blocks = [(f"{i}", i * PAGE) for i in range(100)]
            await client.write_cache(cache, blocks, PAGE)
            return await client.match_prefix([key for key, _ in blocks])

    assert loop.run_until_complete(use()) == 100
    loop.close()


# Name, what the message must say, and the call.
BadCall = tuple[str, str, Callable[[Any], Any]]


class Emptying:
    """An integer that empties a list when it is asked."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __index__(self) -> int:
        self._values.clear()
        return 0


def shrinking_blocks(client: Any) -> Any:
    blocks: list[Any] = [("a", 0)]
    blocks += [("b", Emptying(blocks)), ("c", 0), ("d", 0)]
    return client.write_cache(np.zeros(4, np.uint8), blocks, 1)


def bad_blocks() -> list[BadCall]:
    cache = np.zeros((4, 1024), np.float32)
    return [
        ("empty key", "key 1 has 0 bytes", lambda c: c.write_cache(cache, [("k", 0), ("", 0)], 4)),
        ("long key", "key 0 has 256 bytes; a key has 1 to 255", lambda c: c.exists(["x" * 256])),
        ("key type", "key 0 is a int; keys are str or bytes", lambda c: c.exists([5])),
        ("surrogate", "key 0 is a text that UTF-8 cannot hold", lambda c: c.exists(["\ud800"])),
        ("one text", "keys is one str; give a list", lambda c: c.exists("key")),
        ("shrinking list", "the list of blocks changed while it was read", shrinking_blocks),
        (
            "no tuple",
            "block 0 is 'k'; a block is a tuple",
            lambda c: c.write_cache(cache, ["k"], 4),
        ),
        (
            "offset past",
            "block 0 at offset 4093 takes 16 bytes",
            lambda c: c.write_cache(cache, [("k", 4093)], 4),
        ),
        ("offset < 0", "block 0: its offset -1", lambda c: c.write_cache(cache, [("k", -1)], 4)),
        ("offset type", "block 0: its offset 'x'", lambda c: c.write_cache(cache, [("k", "x")], 4)),
        (
            "offset float",
            "block 0: its offset 1.5",
            lambda c: c.write_cache(cache, [("k", 1.5)], 4),
        ),
        ("huge offset", "block 0", lambda c: c.write_cache(cache, [("k", 2**64 - 1)], 4)),
        ("huger", "block 0: its offset", lambda c: c.write_cache(cache, [("k", 2**64)], 4)),
        (
            "negative array",
            "block 0 at offset -4",
            lambda c: c.write_cache(cache, Blocks(["k"], np.array([-4])), 4),
        ),
        (
            "offset count",
            "1 keys have 2 offsets",
            lambda c: c.write_cache(cache, Blocks(["k"], [0, 1]), 4),
        ),
        (
            "offset array",
            "64-bit",
            lambda c: c.write_cache(cache, Blocks(["k"], np.zeros(1, np.int32)), 4),
        ),
    ]


def bad_caches() -> list[BadCall]:
    cache = np.zeros((4, 1024), np.float32)
    good = [("k", 0)]
    return [
        ("page 0", "page_size is 0 elements", lambda c: c.write_cache(cache, good, 0)),
        ("page large", "give 1 to 4096", lambda c: c.write_cache(cache, good, 5000)),
        ("page type", "page_size is 1.5", lambda c: c.write_cache(cache, good, 1.5)),
        ("unit", "unit is 'pages'", lambda c: c.write_cache(cache, good, 4, unit="pages")),
        ("stride", "not contiguous", lambda c: c.write_cache(cache[:, ::2], good, 4)),
        ("transposed", "not contiguous", lambda c: c.write_cache(cache.T, good, 4)),
        ("read-only", "read-only bytes", lambda c: c.read_cache(bytes(16), good, 4)),
        ("no cache", "the cache is a NoneType", lambda c: c.write_cache(None, good, 4)),
        ("objects", "Python objects", lambda c: c.write_cache(np.array([None]), good, 1)),
        (
            "on_exists",
            "on_exists is 'skip'",
            lambda c: c.write_cache(cache, good, 4, on_exists="skip"),
        ),
    ]


def bad_ranges() -> list[BadCall]:
    cache = np.zeros((4, 1024), np.float32)
    good = [("k", 0)]
    two_d = np.zeros((2, 2, 2), np.uint64)
    there = np.array([cache.ctypes.data], np.uint64)
    return [
        (
            "range",
            "not inside",
            lambda c: c.write_cache(cache, good, 4, value_bytes=20, value_offset=8),
        ),
        (
            "part",
            "value_bytes is not given",
            lambda c: c.write_cache(cache, good, 4, value_offset=8),
        ),
        (
            "value_bytes",
            "value_bytes is -1",
            lambda c: c.write_cache(cache, good, 4, value_bytes=-1),
        ),
        *(
            (
                f"read at {offset!r}",
                f"value_offset is {offset!r}",
                lambda c, offset=offset: c.read_cache(cache, good, 4, value_offset=offset),
            )
            for offset in (-1, False, 0.0)
        ),
        ("no wait", "wait_s is False", lambda c: c.read_cache(cache, good, 4, wait_s=False)),
        ("wait", "wait_s is -1", lambda c: c.read_cache(cache, good, 4, wait_s=-1)),
        ("nan", "wait_s is nan", lambda c: c.read_cache(cache, good, 4, wait_s=float("nan"))),
        ("group", "group is 0", lambda c: c.lookup(["k"], group=0)),
        ("groups", "3 keys are no whole number", lambda c: c.lookup(["a", "b", "c"], group=2)),
        ("lease", "lease_s is -5", lambda c: c.lookup(["k"], lease_s=-5)),
        ("lease ids", "lease ids are", lambda c: c.release([-1])),
        (
            "parents",
            "parents and depths need one",
            lambda c: c.write_cache(cache, good, 4, parents=[]),
        ),
        (
            "parent",
            "parent 0 has 300 bytes",
            lambda c: c.write_cache(cache, good, 4, parents=["x" * 300]),
        ),
        ("depth", "block 0: its depth", lambda c: c.write_cache(cache, good, 4, depths=[2**32])),
        ("segments", "give infinistore.Segments", lambda c: c.write_segments(["k"], there)),
        ("segment 0", "segment_bytes is 0", lambda c: c.write_segments(["k"], Segments(there, 0))),
        (
            "null",
            "block 0: the address of its segment 0 is 0",
            lambda c: c.write_segments(["k"], Segments(there * 0, 4)),
        ),
        ("3-d", "3 dimensions", lambda c: c.write_segments(["k"] * 2, Segments(two_d, 4))),
        (
            "addresses",
            "2 keys have addresses for 1",
            lambda c: c.write_segments(["a", "b"], Segments(there, 4)),
        ),
        ("huge value", "in parts", lambda c: c.write_segments(["k"], Segments(there, 2**30))),
    ]


BAD_CALLS = [*bad_blocks(), *bad_caches(), *bad_ranges()]


@pytest.mark.parametrize(
    ("says", "call"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS]
)
def test_bad_arguments_are_refused_before_anything_is_sent(
    connect: Any, says: str, call: Callable[[Any], Any]
) -> None:
    client = connect()
    with pytest.raises(UsageError) as caught:
        call(client)
    assert says in str(caught.value)
    client.sync()
    stats = client.stats()
    assert stats["protocol_errors"] == 0
    assert client.exists(["k"]) == [False]


def test_tensors_that_cannot_be_used_say_why(connect: Any) -> None:
    torch = pytest.importorskip("torch")
    client = connect()
    for tensor, says in (
        (torch.zeros(8, device="meta"), "only memory of the CPU and of CUDA"),
        (torch.zeros(4, 4).t(), "not contiguous"),
        (torch.zeros(4, 4).to_sparse(), "layout torch.sparse"),
    ):
        with pytest.raises(UsageError, match=says):
            client.write_cache(tensor, [("k", 0)], 1)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://host:1", "the scheme is 'http'"),
        ("infinistore://", "names no host"),
        ("infinistore://host:0", "port '0'"),
        ("infinistore://host:x", "port 'x'"),
        ("infinistore://::1:22345", "brackets"),
        ("infinistore://[::1", "IPv6"),
        ("infinistore://user@host", "more than host and port"),
        ("infinistore://host/space", "more than host and port"),
    ],
)
def test_bad_addresses_are_refused(url: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        infinistore.connect(url)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ({"chanels": 3}, ConfigError, "did you mean channels"),
        ({"transport": "ucx"}, ConfigError, "not one of auto, shm, rdma, tcp"),
        ({"channels": 0}, ConfigError, "1 to 16"),
        ({"namespace": ""}, UsageError, "namespace"),
        ({"namespace": "x" * 600}, UsageError, "600 bytes"),
        ({"token": "x" * 600}, UsageError, "token has 600 bytes"),
    ],
)
def test_bad_settings_are_refused(settings: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        infinistore.connect("infinistore://127.0.0.1:1", **settings)
