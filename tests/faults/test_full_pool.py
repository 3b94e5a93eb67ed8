"""A pool with no room: puts are refused in words for ever, and go on when there is room."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest

import infinistore
from infinistore import Code
from server_process import ServerProcess
from transports import TRANSPORTS
from waiting import until

MIB = 1024**2
StartServer = Callable[..., ServerProcess]


def fill(client: infinistore.Client, prefix: str, size: int = MIB) -> list[str]:
    """Writes values until one is refused; the keys of those that were not."""
    cache = np.ones(size, np.uint8)
    keys: list[str] = []
    while client.write_cache(cache, [(f"{prefix}{len(keys)}", 0)], size).wait(10).all_ok:
        keys.append(f"{prefix}{len(keys)}")
        assert len(keys) < 1000
        lease = client.lookup(keys[-1:], lease_s=300)
        assert lease.wait(10) == 1
    return keys


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_puts_for_ever_into_a_pool_of_which_all_is_pinned(
    start_server: StartServer, transport: str
) -> None:
    server = start_server("--pool=32MiB")
    until(lambda: not server.admin("/health")["populating"])
    with infinistore.connect(server.url, transport=transport) as client:
        cache = np.arange(MIB, dtype=np.uint8)
        holder = infinistore.connect(server.url, transport=transport)
        pinned = fill(holder, "pinned")
        assert len(pinned) >= 28
        for number in range(300):
            batch = client.write_cache(cache, [(f"{number}-{i}", 0) for i in range(4)], MIB)
            outcomes = batch.wait(10)
            assert set(outcomes) <= {Code.OUT_OF_MEMORY, Code.OVERLOADED}, list(outcomes)
            error = batch.error()
            assert isinstance(error, infinistore.InfiniStoreError)
            assert error.retryable
        stats = server.stats()
        assert stats["reserved_bytes"] == 0
        assert stats["staged_values"] == 0
        holder.close()  # its leases end with it
        until(lambda: server.stats()["pins"] == 0)
        assert client.write_cache(cache, [("after", 0)], MIB).wait(10).all_ok
        target = np.zeros_like(cache)
        assert client.read_cache(target, [("after", 0)], MIB).wait(10).all_ok
        assert np.array_equal(target, cache)
    assert server.stop() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ten_thousand_leases_that_nobody_reads_end_by_their_deadline(
    start_server: StartServer, transport: str
) -> None:
    server = start_server("--pool=32MiB")
    until(lambda: not server.admin("/health")["populating"])
    with infinistore.connect(server.url, transport=transport) as client:
        size, count = 4096, 1000
        cache = np.ones(count * size, np.uint8)
        keys = [f"found-{i}" for i in range(count)]
        client.write_cache(cache, [(key, i * size) for i, key in enumerate(keys)], size)
        client.sync()
        lookups = [client.lookup(keys[n % count : n % count + 4], lease_s=3) for n in range(10_000)]
        for lookup in lookups:
            assert lookup.wait(30) >= 1
        assert server.stats()["leases"] > 0
        # Bytes that a lease holds stay, whatever fills the pool; no call of ours ends a lease.
        value = np.ones(MIB, np.uint8)
        for number in range(64):
            client.write_cache(value, [(f"filler-{number}", 0)], MIB).wait(10)
        until(lambda: server.stats()["leases"] == 0, 20)
        assert server.stats()["pins"] == 0
        for number in range(64):
            batch = client.write_cache(value, [(f"later-{number}", 0)], MIB)
            assert batch.wait(10).all_ok
        assert client.exists(keys) == [False] * count  # evicted: nothing held them any more
    assert server.stop() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_pool_of_two_values_under_eight_threads_gives_misses_and_no_wrong_bytes(
    start_server: StartServer, transport: str
) -> None:
    server = start_server("--pool=8MiB", "--stage-share=1")
    size = 3 * MIB
    wrong: list[str] = []
    seen = {"hit": 0, "miss": 0}

    def work(number: int) -> None:
        with infinistore.connect(server.url, transport=transport) as client:
            source = np.full(size, number, np.uint8)
            target = np.zeros(size, np.uint8)
            for turn in range(12):
                written = client.write_cache(source, [(f"{number}-{turn}", 0)], size).wait(30)
                if written[0] not in (Code.OK, Code.OUT_OF_MEMORY, Code.OVERLOADED):
                    wrong.append(f"write: {written[0]!r}")
                target[:] = 99
                outcome = client.read_cache(target, [(f"{number}-{turn}", 0)], size).wait(30)[0]
                if outcome == Code.OK:
                    seen["hit"] += 1
                    if not (target == number).all():
                        wrong.append("bytes of another")
                elif outcome == Code.MISSING:
                    seen["miss"] += 1
                    if not (target == 99).all():
                        wrong.append("a miss that wrote")
                else:
                    wrong.append(f"read: {outcome!r}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert sum(seen.values()) == 96
    until(lambda: server.stats()["pins"] == 0)
    stats = server.stats()
    assert stats["reserved_bytes"] == 0
    assert (
        stats["free_bytes"] + stats["sealed_bytes"] + stats["quarantined_bytes"]
        == (stats["capacity_bytes"])
    )
    assert server.stop() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_readers_go_on_while_others_evict(start_server: StartServer, transport: str) -> None:
    server = start_server("--pool=32MiB")
    until(lambda: not server.admin("/health")["populating"])
    is_over = threading.Event()

    def fill_without_end() -> None:
        value = np.ones(MIB, np.uint8)
        with infinistore.connect(server.url, transport=transport) as client:
            for number in itertools.count():
                if is_over.is_set():
                    return
                client.write_cache(value, [(f"filler-{number}", 0)], MIB).wait(30)

    with infinistore.connect(server.url, transport=transport) as client:
        source = np.arange(4096, dtype=np.uint8)
        client.write_cache(source, [("kept", 0)], 4096)
        client.sync()
        lease = client.lookup(["kept"], lease_s=120)
        assert lease.wait(10) == 1
        writers = [threading.Thread(target=fill_without_end) for _ in range(2)]
        for writer in writers:
            writer.start()
        try:
            until(lambda: server.stats()["evictions"] > 0, 30)
            before = server.stats()["evictions"]
            for _ in range(300):
                target = np.zeros_like(source)
                assert client.read_cache(target, [("kept", 0)], 4096).wait(30).all_ok
                assert np.array_equal(target, source)
            until(lambda: server.stats()["evictions"] > before, 30)
        finally:
            is_over.set()
            for writer in writers:
                writer.join(60)
        assert client.stats()["client_timeouts"] == 0
    assert server.stop() == 0
