"""Values from one real server to another: bytes, sizes, what is there already, what is not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import infinistore
from infinistore.cluster.node.board import publish, read_note
from infinistore.cluster.node.peers import Peers
from infinistore.cluster.node.rate import Rate
from infinistore.cluster.node.transfer import BUFFER_BYTES, Source, Stored, batches, push
from infinistore.cluster.view import NOTE_NAMESPACE, Note
from server_process import ServerProcess

FAST = 1e12


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    first, second = ServerProcess(), ServerProcess()
    yield first, second
    first.kill()
    second.kill()


class Still:
    """A source whose values stay what they are, but for those that are told."""

    def __init__(self, *changed: bytes) -> None:
        self.changed = changed
        self._moves: list[list[bytes]] = []

    def begin_move(self, namespace: str, keys: list[bytes]) -> int:
        self._moves.append(keys)
        return len(self._moves)

    def end_move(self, move: int) -> list[bool]:
        return [key not in self.changed for key in self._moves[move - 1]]


def value(key: bytes, size: int) -> np.ndarray:
    return np.random.default_rng(list(key)).integers(0, 256, size, dtype=np.uint8)


async def test_values_arrive_as_they_were(servers: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = servers
    peers = Peers("")
    source = await peers.client(first.address, "transfer")
    target = await peers.client(second.address, "transfer")
    sizes = {b"s%d" % i: 1000 + i % 3 for i in range(100)}
    sizes[b"large"] = BUFFER_BYTES * 2 + 77
    for key, size in sizes.items():
        await source.write_cache(value(key, size), [(key, 0)], size)
    await target.write_cache(value(b"s0", 1000), [("s0", 0)], 1000)

    wanted = [Stored(key, size) for key, size in sizes.items()] + [Stored(b"gone", 10)]
    origin = Source(source, Still(), "transfer")
    moved = await push(origin, target, wanted, Rate(FAST))
    assert (moved.there, moved.absent, moved.refused) == ((b"s0",), 1, 0)
    assert set(moved.sent) == sizes.keys() - {b"s0"}
    assert moved.sent_bytes == sum(sizes.values()) - 1000
    for key, size in sizes.items():
        read = np.zeros(size, dtype=np.uint8)
        await target.read_cache(read, [(key, 0)], size)
        assert np.array_equal(read, value(key, size))
    again = await push(origin, target, wanted, Rate(FAST))
    assert (again.sent, again.sent_bytes, len(again.there)) == ((), 0, len(sizes))
    assert second.stats()["staged_values"] == 0
    await peers.close()


async def test_a_value_that_changed_on_the_way_is_never_seen(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = servers
    peers = Peers("")
    source = await peers.client(first.address, "changing")
    target = await peers.client(second.address, "changing")
    sizes = {b"kept": 1000, b"replaced": 1000, b"large": BUFFER_BYTES + 5, b"tiny": 1}
    for key, size in sizes.items():
        await source.write_cache(value(key, size), [(key, 0)], size, unit="bytes")
    origin = Source(source, Still(b"replaced", b"large"), "changing")
    moved = await push(origin, target, [Stored(k, s) for k, s in sizes.items()], Rate(FAST))
    assert set(moved.sent) == {b"kept", b"tiny"}
    assert (moved.absent, moved.refused) == (2, 0)
    assert await target.exists(list(sizes)) == [True, False, False, True]
    assert second.stats()["staged_values"] == 0
    await peers.close()


async def test_a_source_that_stops_on_the_way_leaves_nothing_behind(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    class Stopped(Still):
        def end_move(self, move: int) -> list[bool]:
            return []  # as a server that has stopped

    first, second = servers
    peers = Peers("")
    source = await peers.client(first.address, "stopping")
    target = await peers.client(second.address, "stopping")
    await source.write_cache(value(b"k", 1000), [(b"k", 0)], 1000, unit="bytes")
    moved = await push(
        Source(source, Stopped(), "stopping"), target, [Stored(b"k", 1000)], Rate(FAST)
    )
    assert (moved.sent, moved.absent, moved.refused) == ((), 1, 0)
    assert await target.exists([b"k"]) == [False]
    assert second.stats()["staged_values"] == 0
    await peers.close()


async def test_notes_of_any_size_are_read(servers: tuple[ServerProcess, ServerProcess]) -> None:
    first, _ = servers
    peers = Peers("")
    client = await peers.client(first.address, NOTE_NAMESPACE)
    assert await read_note(client) is None
    for groups in (0, 1000, 3):
        note = Note("a", 7, "up", {i: ("b", "c") for i in range(groups)}, 5.0)
        await publish(client, note)
        assert await read_note(client) == note
    await peers.close()


async def test_clients_are_few_and_a_dead_server_is_an_error(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    first, _ = servers
    peers = Peers("", clients_max=2)
    clients = [await peers.client(first.address, f"n{i}") for i in range(3)]
    assert await peers.client(first.address, "n2") is clients[2]
    assert await peers.client(first.address, "n0") is not clients[0]
    with pytest.raises(infinistore.ConnectError):
        await peers.client("127.0.0.1:1", "n")
    await peers.close()


def test_batches_are_of_one_size_and_fit() -> None:
    values = [Stored(b"a", 4), Stored(b"b", 10), Stored(b"c", 4), Stored(b"d", 4), Stored(b"e", 0)]
    assert batches(values, 8) == [
        [Stored(b"a", 4), Stored(b"c", 4)],
        [Stored(b"d", 4)],
        [Stored(b"b", 10)],
    ]


def test_a_rate_makes_wait_for_what_was_spent() -> None:
    now = [0.0]
    rate = Rate(100.0, clock=lambda: now[0])
    assert [rate.wait_s(10), rate.wait_s(200), rate.wait_s(1)] == [0.0, 0.0, 2.0]
    now[0] = 3.0
    assert rate.wait_s(1) == 0.0
    assert rate.spent_bytes == 212
