"""Links that fail: dead, stopped, restarted and foreign servers, cancelled calls, damaged bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import (
    AuthError,
    Code,
    ConnectError,
    DisconnectedError,
    LinkError,
    ProtocolError,
    RequestTimeoutError,
    SetupError,
)
from pool_damage import damage_pool
from server_process import ServerProcess
from transports import TRANSPORTS
from waiting import freeze

PAGE = 4096
Start = Callable[..., ServerProcess]


def pages(prefix: str, count: int) -> list[tuple[str, int]]:
    return [(f"{prefix}{index}", index * PAGE) for index in range(count)]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def url_of(listener: socket.socket) -> str:
    return f"infinistore://127.0.0.1:{listener.getsockname()[1]}"


def test_no_server_there(listener: socket.socket) -> None:
    url = url_of(listener)
    listener.close()
    started = time.monotonic()
    with pytest.raises(
        ConnectError, match=r"no server answers at 127\.0\.0\.1:.*is infinistore running"
    ):
        infinistore.connect(url)
    assert time.monotonic() - started < 1


def test_an_unknown_host() -> None:
    with pytest.raises(ConnectError, match=r"host no-such-host\.invalid is unknown"):
        infinistore.connect("infinistore://no-such-host.invalid")


def test_a_server_that_never_answers(listener: socket.socket) -> None:
    started = time.monotonic()
    with pytest.raises(RequestTimeoutError, match="does not answer"):
        infinistore.connect(url_of(listener), connect_timeout_s=0.3)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 64, b"\x00" * 64])
def test_something_else_listens_there(listener: socket.socket, answer: bytes) -> None:
    def serve() -> None:
        peer, _ = listener.accept()
        peer.sendall(answer)
        peer.recv(4096)
        peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(ProtocolError, match="no InfiniStore server"):
        infinistore.connect(url_of(listener))
    thread.join()


def test_a_wrong_token_is_refused(start_server: Start) -> None:
    server = start_server("--token=right")
    with pytest.raises(AuthError, match="token"):
        infinistore.connect(server.url, token="wrong")
    with pytest.raises(AuthError, match="token"):
        infinistore.connect(server.url)
    infinistore.connect(server.url, token="right").close()


def test_shared_memory_asked_for_and_not_there(start_server: Start) -> None:
    server = start_server("--unix-socket=none")
    with pytest.raises(SetupError, match=r'shared memory cannot be used.*transport="auto"'):
        infinistore.connect(server.url, transport="shm")
    with infinistore.connect(server.url) as client:
        assert client.transport == "tcp"
        assert "unix socket" in client.server["no_sharing_reason"]


def test_names_and_ipv6_reach_a_server(start_server: Start) -> None:
    server = start_server()
    port = server.address.rpartition(":")[2]
    infinistore.connect(f"localhost:{port}").close()
    try:
        six = start_server("--host=::1")
    except AssertionError:
        pytest.skip("this machine has no IPv6")
    assert six.address.startswith("[::1]:")
    infinistore.connect(six.url).close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_server_fails_calls_at_once(start_server: Start, transport: str) -> None:
    server = start_server()
    client = infinistore.connect(server.url, transport=transport)
    # Waits for a value that is begun and never completed.
    client.write_cache(bytes(PAGE), [("k", 0)], PAGE, value_bytes=2 * PAGE).wait()
    waiting = client.read_cache(bytearray(PAGE), [("k", 0)], PAGE, wait_s=60)
    lookup = client.lookup(["k"])
    lookup.wait()
    server.kill()
    started = time.monotonic()
    assert list(waiting.wait(5)) == [Code.DISCONNECTED]
    with pytest.raises(DisconnectedError, match="read failed for 1 key") as caught:
        raise waiting.error() or AssertionError
    assert list(caught.value.outcomes or ()) == [Code.DISCONNECTED]
    for use in (lambda: client.exists(["k"]), lambda: client.stats(), client.lookup(["k"]).wait):
        with pytest.raises(LinkError):
            use()
    client.write_cache(bytes(PAGE), [("k", 0)], PAGE)
    with pytest.raises(LinkError):
        client.sync()
    client.sync()
    client.renew([1], 5)
    client.release([1])
    client.close()
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_finds_a_restarted_server(start_server: Start, transport: str) -> None:
    first = start_server()
    port = first.address.rpartition(":")[2]
    client = infinistore.connect(first.url, transport=transport)
    client.write_cache(bytes(PAGE), [("k", 0)], PAGE)
    client.sync()
    was = client.server["incarnation"]
    first.kill()
    with pytest.raises(LinkError):
        client.exists(["k"])
    start_server(f"--port={port}")
    deadline = time.monotonic() + 5
    while True:
        try:
            assert client.exists(["k"]) == [False]
            break
        except LinkError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert client.transport == transport
    assert client.server["incarnation"] != was
    client.write_cache(bytes(range(256)) * 16, [("k", 0)], PAGE)
    client.sync()
    target = bytearray(PAGE)
    client.read_cache(target, [("k", 0)], PAGE)
    client.sync()
    assert target == bytes(range(256)) * 16
    client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stopped_server_times_out_and_the_cache_is_fenced(
    start_server: Start, transport: str
) -> None:
    server = start_server("--pool=256MiB")
    client = infinistore.connect(server.url, transport=transport)
    count = 4096
    source = np.random.default_rng(0).integers(0, 256, count * PAGE, dtype=np.uint8)
    client.write_cache(source, pages("k", count), PAGE)
    client.sync()
    target = np.zeros_like(source)
    freeze(server.pid)
    try:
        started = time.monotonic()
        reads = client.read_cache(target, pages("k", count), PAGE)
        writes = client.write_cache(source, pages("new", count), PAGE)
        lookup = client.lookup(["k0"])
        assert set(reads.wait(5)) == {Code.TIMEOUT}
        assert set(writes.wait(5)) == {Code.TIMEOUT}
        with pytest.raises(RequestTimeoutError, match="did not answer in time"):
            lookup.wait(5)
        assert time.monotonic() - started < 3  # 0.9 and a busy machine's delays
        target[:] = 7
    finally:
        os.kill(server.pid, signal.SIGCONT)
    # The server now acts on what it was asked: none of it may reach the cache.
    deadline = time.monotonic() + 5
    while True:
        try:
            assert client.match_prefix(["k0"]) == 1
            break
        except LinkError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert (target == 7).all()
    assert client.read_cache(target, pages("k", count), PAGE).wait(5).all_ok
    assert np.array_equal(target, source)
    client.close()
    assert server.stop() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cancelled_read_leaves_the_cache_alone(
    connect: Any, server: ServerProcess, transport: str
) -> None:
    client = connect(transport=transport)
    count = 2000
    source = np.ones(count * PAGE, np.uint8)
    client.write_cache(source, pages("k", count), PAGE)
    client.sync()
    for delay in (None, 0.0, 0.0005, 0.001, 0.002, 0.004):
        target = np.zeros_like(source)
        if delay is None:  # it cannot be answered before it is cancelled
            freeze(server.pid)
        batch = client.read_cache(target, pages("k", count), PAGE)
        time.sleep(delay or 0.01)
        batch.cancel()
        outcomes = batch.wait(5)
        target[:] = 9
        if delay is None:
            os.kill(server.pid, signal.SIGCONT)
            assert set(outcomes) == {Code.CANCELLED}
        time.sleep(0.02)
        assert (target == 9).all()
        assert set(outcomes) <= {Code.OK, Code.CANCELLED}
    target = np.zeros_like(source)
    assert client.read_cache(target, pages("k", count), PAGE).wait(5).all_ok
    assert np.array_equal(target, source)
    stats = client.stats()
    # Over RDMA the stopped server's device may still write until the queue pair has ended.
    ended = stats["client_disconnects"] - stats["client_timeouts"] if transport == "rdma" else 0
    assert (ended, stats["protocol_errors"]) == (0, 0)
    assert transport == "rdma" or stats["client_disconnects"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cancelled_write_gives_its_space_back(connect: Any, transport: str) -> None:
    client = connect(transport=transport)
    count = 2000
    source = np.ones(count * PAGE, np.uint8)
    for round_ in range(10):
        batch = client.write_cache(source, pages(f"{round_}-", count), PAGE)
        batch.cancel()
        outcomes = batch.wait(5)
        assert set(outcomes) <= {Code.OK, Code.CANCELLED}
        for index in outcomes.missing + outcomes.failed:
            assert outcomes[index] == Code.CANCELLED
    client.exists(["k"])
    for _ in range(100):
        stats = client.stats()
        if not stats["reserved_bytes"] and not stats["quarantined_bytes"]:
            break
        time.sleep(0.02)
    assert (stats["reserved_bytes"], stats["quarantined_bytes"]) == (0, 0)
    assert stats["protocol_errors"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_cancelled_task_returns_behind_the_fence(
    server: ServerProcess, transport: str
) -> None:
    client = await infinistore.connect_async(server.url, "tasks", transport=transport)
    count = 2000
    source = np.ones(count * PAGE, np.uint8)
    await client.write_cache(source, pages("k", count), PAGE)
    for delay in (0, 0, 0.0005, 0.002, 0.004):
        target = np.zeros_like(source)
        task = asyncio.create_task(client.read_cache(target, pages("k", count), PAGE))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            target[:] = 9
            await asyncio.sleep(0.02)
            assert (target == 9).all()
        assert task.done()
    waiting = asyncio.create_task(
        client.read_cache(bytearray(PAGE), [("begun", 0)], PAGE, wait_s=60)
    )
    with pytest.raises(infinistore.KeyNotFound):  # nobody writes it: there is nothing to wait for
        await waiting
    await client.write_cache(bytes(PAGE), [("begun", 0)], PAGE, value_bytes=2 * PAGE)
    async_read = client.read_cache(bytearray(PAGE), [("begun", 0)], PAGE, wait_s=60)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(async_read, 0.1)
    await client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_damaged_bytes_are_noticed_and_dropped(
    start_server: Start, transport: str, tmp_path: Any
) -> None:
    """Another process of the pool's owner scribbles over one value of two."""
    server = start_server()
    client = infinistore.connect(server.url, transport=transport)
    marks = [bytes([n]) * 13 + os.urandom(PAGE - 13) for n in (1, 2)]
    client.write_cache(marks[0] + marks[1], pages("k", 2), PAGE)
    client.sync()
    damage_pool(server.pid, marks[0][:64])
    target = bytearray(2 * PAGE)
    outcomes = client.read_cache(target, pages("k", 2), PAGE).wait(5)
    assert list(outcomes) == [Code.CORRUPT, Code.OK]
    assert (outcomes.missing, outcomes.failed) == ([0], [])
    assert target[PAGE:] == marks[1]
    assert client.stats()["client_corrupt"] == 1
    for _ in range(100):
        if client.exists(["k0", "k1"]) == [False, True]:
            break
        time.sleep(0.01)
    assert client.exists(["k0", "k1"]) == [False, True]
    stats = client.stats()
    assert (stats["corrupt"], stats["erased"]) == (1, 0)  # what an operator is alerted by
    client.read_cache(target, pages("k", 2), PAGE)
    with pytest.raises(infinistore.KeyNotFound):
        client.sync()
    client.close()


MANNERS = """
import os, resource, signal, sys, threading, time
before = (dict(os.environ), [signal.getsignal(s) for s in range(1, 32)], threading.active_count())
import infinistore
assert (dict(os.environ), [signal.getsignal(s) for s in range(1, 32)],
        threading.active_count()) == before
threads = lambda: len(os.listdir("/proc/self/task"))
assert threads() == 1, threads()
loaded = {"numpy", "torch", "asyncio.unix_events"} & set(sys.modules)
assert not loaded & {"numpy", "torch"}, loaded
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
client = infinistore.connect(sys.argv[1], transport=sys.argv[2])
client.write_cache(bytes(4096), [("k", 0)], 4096)
client.sync()
assert threads() == (2 if sys.argv[2] == "shm" else 3), threads()
for task in os.listdir("/proc/self/task"):
    if int(task) != os.getpid():
        status = open(f"/proc/self/task/{task}/status").read()
        assert "SigBlk:\\tffff" in status or "SigBlk:\\tfffffffe" in status, status
        if os.cpu_count() > 1:
            assert len(os.sched_getaffinity(int(task))) > 1
shares = []
while len(shares) < 3 and min(shares, default=1) >= 0.01:  # what begins may still settle
    begin, cpu = time.monotonic(), time.process_time()
    time.sleep(1)
    shares.append((time.process_time() - cpu) / (time.monotonic() - begin))
assert min(shares) < 0.01, shares
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_is_a_good_guest(server: ServerProcess, transport: str) -> None:
    """Import changes nothing, its threads take no signals and no core, and idle it sleeps."""
    done = subprocess.run(
        [sys.executable, "-c", MANNERS, server.url, transport], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_wait(server: ServerProcess) -> None:
    code = (
        "import infinistore, sys\n"
        "client = infinistore.connect(sys.argv[1], 'ctrl-c')\n"
        "client.write_cache(bytes(8), [('k', 0)], 8, value_bytes=16).wait()\n"
        "batch = client.read_cache(bytearray(8), [('k', 0)], 8, wait_s=60)\n"
        "print('waiting', flush=True)\n"
        "batch.wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0
