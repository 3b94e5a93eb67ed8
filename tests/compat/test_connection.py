"""The original's connection (its version 0.2.23 and later), over each transport."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import InfinityConnection
from server_process import ServerProcess

BLOCK = 4096
TRANSPORTS = ("tcp", "shm")

Make = Callable[..., InfinityConnection]


@pytest.fixture(params=TRANSPORTS)
def make(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Make]:
    """Connected connections: `make()`, `make("TCP")`, `make(to=another_server)`."""
    made: list[InfinityConnection] = []

    def connection(kind: str = "RDMA", to: ServerProcess | None = None, **more: Any) -> Any:
        host, _, port = (to or server).address.rpartition(":")
        config = infinistore.ClientConfig(
            host_addr=host,
            service_port=int(port),
            connection_type=kind,
            transport=request.param,
            namespace=request.node.nodeid[-200:],
            **more,
        )
        made.append(InfinityConnection(config))
        made[-1].connect()
        return made[-1]

    yield connection
    for each in made:
        each.close()


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def registered(connection: InfinityConnection, array: np.ndarray) -> int:
    pointer = int(array.ctypes.data)
    assert connection.register_mr(pointer, array.nbytes) == 0
    return pointer


async def test_blocks_at_byte_offsets_come_back_equal(make: Make) -> None:
    connection = make()
    source, target = noise(10 * BLOCK), np.zeros(10 * BLOCK, np.uint8)
    blocks = [(f"k{i}", i * BLOCK) for i in range(10)]
    write = connection.rdma_write_cache_async(blocks, BLOCK, registered(connection, source))
    assert await write == 200
    read = connection.rdma_read_cache_async(blocks[2:7], BLOCK, registered(connection, target))
    assert await read == 200
    inside = slice(2 * BLOCK, 7 * BLOCK)
    assert np.array_equal(target[inside], source[inside])
    assert not target[: 2 * BLOCK].any()
    assert not target[7 * BLOCK :].any()


async def test_a_short_value_is_read_whole_and_the_rest_is_untouched(make: Make) -> None:
    connection = make()
    source, target = noise(BLOCK), np.full(3 * BLOCK, 7, np.uint8)
    pointer = registered(connection, source)
    await connection.rdma_write_cache_async([("short", 0)], 100, pointer)
    await connection.rdma_write_cache_async([("shorter", 50)], 13, pointer)
    await connection.rdma_write_cache_async([("whole", 0)], BLOCK, pointer)
    blocks = [("short", 0), ("shorter", BLOCK), ("whole", 2 * BLOCK)]
    await connection.rdma_read_cache_async(blocks, BLOCK, registered(connection, target))
    assert np.array_equal(target[:100], source[:100])
    assert (target[100:BLOCK] == 7).all()
    assert np.array_equal(target[BLOCK : BLOCK + 13], source[50:63])
    assert (target[BLOCK + 13 : 2 * BLOCK] == 7).all()
    assert np.array_equal(target[2 * BLOCK :], source)


async def test_a_value_that_is_too_long_for_its_block_is_an_error(make: Make) -> None:
    connection = make()
    memory = noise(2 * BLOCK)
    pointer = registered(connection, memory)
    await connection.rdma_write_cache_async([("long", 0)], 2 * BLOCK, pointer)
    with pytest.raises(Exception, match="ret = 400") as caught:
        await connection.rdma_read_cache_async([("long", 0)], BLOCK, pointer)
    assert "8192" in str(caught.value)


async def test_any_missing_key_is_key_not_found(make: Make) -> None:
    connection = make()
    source = noise(BLOCK)
    pointer = registered(connection, source)
    await connection.rdma_write_cache_async([("here", 0)], BLOCK, pointer)
    for blocks in ([("gone", 0)], [("here", 0), ("gone", 0)]):
        with pytest.raises(infinistore.InfiniStoreKeyNotFound):
            await connection.rdma_read_cache_async(blocks, BLOCK, pointer)
    # The class has two homes, and is an InfiniStoreException and an Exception.
    assert infinistore.lib.InfiniStoreKeyNotFound is infinistore.InfiniStoreKeyNotFound
    assert issubclass(infinistore.InfiniStoreKeyNotFound, infinistore.InfiniStoreException)


async def test_the_last_write_wins_and_old_bytes_are_replaced(make: Make) -> None:
    connection = make()
    memory = noise(4 * BLOCK)
    pointer = registered(connection, memory)
    for offset, size in ((0, BLOCK), (BLOCK, 2 * BLOCK), (3 * BLOCK, 100)):
        await connection.rdma_write_cache_async([("k", offset)], size, pointer)
        value = connection.tcp_read_cache("k")
        assert value is not None
        assert np.array_equal(value, memory[offset : offset + size])
    assert connection.delete_keys(["k"]) == 1


async def test_memory_must_be_registered_and_pointers_inside_are_good(make: Make) -> None:
    connection = make()
    memory = noise(4 * BLOCK)
    pointer = int(memory.ctypes.data)
    with pytest.raises(infinistore.InfiniStoreException, match="not registered"):
        await connection.rdma_write_cache_async([("k", 0)], BLOCK, pointer)
    for _ in range(2):  # again: replaces it
        assert connection.register_mr(pointer, 4 * BLOCK) == 0
    await connection.rdma_write_cache_async([("k", BLOCK)], BLOCK, pointer + BLOCK)
    value = connection.tcp_read_cache("k")
    assert value is not None
    assert np.array_equal(value, memory[2 * BLOCK : 3 * BLOCK])
    for offset in (4 * BLOCK, 3 * BLOCK + 1, -1):
        with pytest.raises(infinistore.InfiniStoreException, match="registered 16384 bytes"):
            await connection.rdma_write_cache_async([("k", offset)], BLOCK, pointer)
    with pytest.raises(NotImplementedError):
        connection.register_mr("memory", 3)


def test_memory_is_registered_from_many_threads(make: Make) -> None:
    connection = make()
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda n: connection.register_mr(4096 * (1 + n % 50), 4096), range(2000))
        assert set(made) == {0}


def test_one_connection_serves_loops_in_several_threads(make: Make) -> None:
    connection = make()
    memory = noise(16 * BLOCK)
    pointer = registered(connection, memory)
    wrong: list[BaseException] = []

    async def work(worker: int) -> None:
        for round_ in range(20):
            key, at = f"{worker}-{round_}", (worker * 4 + round_ % 4) * BLOCK
            await asyncio.gather(
                *(connection.rdma_write_cache_async([(key + s, at)], BLOCK, pointer) for s in "abc")
            )
            value = await asyncio.to_thread(connection.tcp_read_cache, key + "b")
            assert value is not None
            assert np.array_equal(value, memory[at : at + BLOCK])

    def run(worker: int) -> None:
        try:
            asyncio.run(work(worker))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong


async def test_a_cancelled_read_no_longer_touches_memory(make: Make) -> None:
    connection = make()
    memory = noise(64 * BLOCK)
    pointer = registered(connection, memory)
    blocks = [(f"k{i}", i * BLOCK) for i in range(64)]
    await connection.rdma_write_cache_async(blocks, BLOCK, pointer)
    for _ in range(50):
        reading = asyncio.ensure_future(connection.rdma_read_cache_async(blocks, BLOCK, pointer))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        before = memory.copy()
        await asyncio.sleep(0)
        assert np.array_equal(memory, before)
    assert await connection.rdma_read_cache_async(blocks, BLOCK, pointer) == 200


@pytest.mark.parametrize("size", [1, 100, 65536, 65537, 3 * 2**20 + 5])
def test_single_values_by_tcp(make: Make, size: int) -> None:
    connection = make("TCP")
    source = noise(size)
    assert connection.tcp_write_cache("k", int(source.ctypes.data), size, unknown=1) is None
    for _ in range(2):  # the second time its size is guessed right
        value = connection.tcp_read_cache("k", unknown=1)
        assert value is not None
        assert value.dtype == np.uint8
        assert value.flags.owndata
        assert np.array_equal(value, source)
    connection.tcp_write_cache("small", int(source.ctypes.data), 1)
    assert len(connection.tcp_read_cache("small")) == 1


def test_a_missing_key_is_none_at_once(make: Make) -> None:
    assert make("TCP").tcp_read_cache("gone") is None


@pytest.mark.parametrize(
    ("key", "pointer", "size"), [("", 1, 1), ("k", 0, 1), ("k", 1, 0)], ids=["key", "ptr", "size"]
)
def test_empty_arguments_are_errors(make: Make, key: str, pointer: int, size: int) -> None:
    connection = make("TCP")
    with pytest.raises(Exception, match=r"key is empty|ptr is 0|size is 0"):
        connection.tcp_write_cache(key, pointer, size)
    with pytest.raises(Exception, match="key is empty"):
        connection.check_exist("")  # the original hangs


@pytest.mark.parametrize("kind", ["RDMA", "TCP"])
def test_keys_are_looked_up_matched_and_deleted(make: Make, kind: str) -> None:
    connection = make(kind)
    source = noise(100)

    def put(*keys: str) -> None:
        for key in keys:
            connection.tcp_write_cache(key, int(source.ctypes.data), 100)

    put("p0", "p1", "p2", "a")
    assert connection.check_exist("p0") is True
    assert connection.check_exist("x") is False
    # The answers that the original was seen to give: a binary search's.
    assert connection.get_match_last_index(["p0", "p1", "p2", "x", "y"]) == 2
    assert connection.get_match_last_index(["A", "B", "C", "a", "D", "E"]) == 3
    assert connection.get_match_last_index(["a", "B", "C", "D", "E", "F"]) == 0
    for keys in (["x", "y"], []):
        with pytest.raises(Exception, match="can't find a match"):
            connection.get_match_last_index(keys)
    assert connection.delete_keys(["p0", "p0", "gone", "p1"]) == 2
    assert connection.delete_keys([]) == 0


@pytest.mark.parametrize(
    "key", ["a\0b", "x" * 250, "org/model@1@0@" + "f" * 400, "\u4f60"], ids=len
)
def test_keys_of_any_length_and_with_zeros(make: Make, key: str) -> None:
    connection = make("TCP")
    source = noise(100)
    connection.tcp_write_cache(key, int(source.ctypes.data), 100)
    assert connection.check_exist(key)
    assert not connection.check_exist(key + "x")
    assert not connection.check_exist(key[:-1] + "!")
    assert np.array_equal(connection.tcp_read_cache(key), source)


async def test_calls_for_rdma_need_rdma(make: Make) -> None:
    connection = make("TCP")
    for call in (
        lambda: connection.register_mr(4096, 4096),
        lambda: connection.allocate_rdma(["k"], 4096),
    ):
        with pytest.raises(Exception, match="only valid for connected rdma"):
            call()
    with pytest.raises(Exception, match="only valid for connected rdma"):
        await connection.rdma_write_cache_async([("k", 0)], 1, 4096)
    assert connection.rdma_connected is False


async def test_connecting_twice_and_closing_twice(make: Make) -> None:
    connection = make("RDMA")
    assert connection.rdma_connected is True
    with pytest.raises(Exception, match="Already connected"):
        connection.connect()
    for _ in range(2):
        connection.close()
    assert connection.rdma_connected is False
    with pytest.raises(Exception, match="connect"):
        connection.check_exist("k")
    await connection.connect_async()
    assert connection.check_exist("k") is False
    over_tcp = make("TCP")
    over_tcp.connect()  # the original leaks its first socket


def test_rdma_without_a_device_says_once_what_is_used(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinistore.compat.link._has_told_transport", False)
    with caplog.at_level(logging.WARNING, "infinistore"):
        connections = [make("RDMA", dev_name="no_such_device"), make("RDMA")]
    said = [r.getMessage() for r in caplog.records if "TYPE_RDMA" in r.getMessage()]
    assert said == [
        f"TYPE_RDMA: there is no RDMA between here and there; {connections[0].conn.transport} "
        "is used"
    ]


def test_a_port_is_taken_modulo_65536(server: ServerProcess) -> None:
    port = server.address.rpartition(":")[2]
    config = infinistore.ClientConfig(
        host_addr="localhost", service_port=int(port) + 65536, connection_type="TCP"
    )
    connection = InfinityConnection(config)
    connection.connect()
    assert connection.conn.transport == "tcp"
    connection.close()


@pytest.mark.parametrize("kind", ["RDMA", "TCP"])
async def test_a_restart_of_the_server_is_survived(
    make: Make, start_server: Callable[..., ServerProcess], kind: str
) -> None:
    first = start_server()
    port = first.address.rpartition(":")[2]
    connection = make(kind, to=first)
    source = noise(BLOCK)
    connection.tcp_write_cache("k", int(source.ctypes.data), BLOCK)
    first.kill()
    with pytest.raises(infinistore.InfiniStoreException):  # the original's process dies
        connection.tcp_read_cache("k")
    start_server(f"--port={port}")
    assert connection.tcp_read_cache("k") is None
    connection.tcp_write_cache("k", int(source.ctypes.data), BLOCK)
    assert np.array_equal(connection.tcp_read_cache("k"), source)


async def test_a_full_pool_makes_room_and_a_value_beyond_it_is_refused(
    make: Make, start_server: Callable[..., ServerProcess]
) -> None:
    connection = make("RDMA", to=start_server("--pool=8MiB"))
    memory = noise(16 << 20)
    pointer = registered(connection, memory)
    with pytest.raises(infinistore.InfiniStoreException, match="too large"):
        await connection.rdma_write_cache_async([("k", 0)], 16 << 20, pointer)
    for index in range(40):  # the same connection goes on, and hot keys survive overwriting
        await connection.rdma_write_cache_async([("hot", 0)], 1 << 20, pointer)
        await connection.rdma_write_cache_async([(f"k{index}", 0)], 1 << 18, pointer)
    assert connection.check_exist("hot")
