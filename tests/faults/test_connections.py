"""A thousand connections at once, and tables of descriptors that are full, on either side."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import infinistore
import wire_client as wire
from server_process import ServerProcess
from transports import TRANSPORTS
from waiting import until
from wire_client import WireClient

StartServer = Callable[..., ServerProcess]


@contextmanager
def open_files_limit(soft: int) -> Iterator[None]:
    """Of this process and what it starts; skips the test where so many are not allowed."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] not in (-1, resource.RLIM_INFINITY) and before[1] < soft:
        pytest.skip(f"ulimit -n cannot be {soft} here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def cpu_seconds(server: ServerProcess) -> float:
    with open(f"/proc/{server.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_thousand_sessions_at_once_are_all_served(
    start_server: StartServer, transport: str
) -> None:
    with open_files_limit(8192):
        server = start_server("--sessions-max=1100")
        with WireClient(server.address) as first:
            before = open_files(server)
            path = server.address if transport == "tcp" else server.unix_path
            clients = [WireClient(path, nonce=first.nonce) for _ in range(1000)]
            assert server.stats()["sessions"] == 1001
            for turn in range(3):
                for client in clients:
                    client.request(wire.EXISTS, wire.key_list([b"k%d" % turn]))
                for client in clients:
                    assert client.receive().outcomes == [wire.MISSING]
            assert first.put_value(b"k", b"value") == [wire.OK]
            for client in clients[::2]:
                client.close()
            until(lambda: server.stats()["sessions"] == 501)
            for client in clients[1::2]:
                assert client.call(wire.EXISTS, wire.key_list([b"k"])).outcomes == [wire.OK]
                client.close()
            until(lambda: server.stats()["sessions"] == 1)
            until(lambda: open_files(server) <= before)
        assert server.stop() == 0


def test_a_server_raises_its_limit_of_open_files_for_the_sessions_it_may_have() -> None:
    """The soft limit is 1,024 on most machines: too little, and ours to raise."""
    with open_files_limit(128):
        server = ServerProcess("--sessions-max=1000")
    try:
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        assert soft >= min(2000, hard)
        assert server.stop() == 0
    finally:
        server.kill()


def test_a_server_with_256_descriptors_says_so_and_recovers(start_server: StartServer) -> None:
    server = start_server("--sessions-max=1000")
    hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (256, hard))
    with WireClient(server.address) as first, open_files_limit(2048):
        others, refused = [], []
        for _ in range(300):
            other = WireClient(server.address, greet=False)
            with contextlib.suppress(
                ConnectionError
            ):  # it may be closed by now; the reason is there
                other.send(wire.frame(wire.HELLO, 1, wire.hello()))
            answer = other.receive()
            if answer.opcode == wire.WELCOME:
                others.append(other)
            else:
                refused.append(answer.error)
                other.close()
        assert 100 < len(others) < 256
        assert set(refused) == {(wire.OVERLOADED, refused[0][1])}
        assert "ulimit -n" in refused[0][1]
        assert server.stats()["sessions"] == len(others) + 1  # who looks why gets an answer
        with pytest.raises(infinistore.errors.OverloadedError, match="ulimit -n"):
            infinistore.connect(server.url, connect_timeout_s=10)
        used_s = cpu_seconds(server)
        time.sleep(0.5)
        assert cpu_seconds(server) - used_s < 0.25
        assert first.put_value(b"k", b"value") == [wire.OK]
        for other in others:
            other.close()
        until(lambda: server.stats()["sessions"] == 1)
        with infinistore.connect(server.url, connect_timeout_s=10) as later:
            assert later.exists(["k"]) == [False]
    assert server.stop() == 0


# Connects with ever fewer descriptors left, then works at the limit with what is open.
AT_THE_LIMIT = """
import os, resource, sys
import infinistore
url, transport = sys.argv[1:3]
def count():
    return len(os.listdir("/proc/self/fd"))
infinistore.connect(url, transport=transport).close()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before, said, worked = count(), set(), 0
for spare in range(24):
    # Descriptors are taken from the lowest on; listdir() has one more itself.
    resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + spare, hard))
    try:
        with infinistore.connect(url, transport=transport, connect_timeout_s=10) as client:
            for n in range(4):  # keys of both connections of TCP
                client.write_cache(b"x" * 4096, [(f"k{n}", 0)], 4096)
                client.sync()
                target = bytearray(4096)
                client.read_cache(target, [(f"k{n}", 0)], 4096)
                client.sync()
                assert target == b"x" * 4096
        worked += 1
    except infinistore.InfiniStoreError as error:
        said.add(str(error))
    finally:
        client = None  # with it go the descriptors that it has beside its connections
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert count() == before, (spare, count(), before)
assert worked >= 5, worked
for text in said:
    print(text)
"""


@pytest.mark.parametrize("transport", ["auto", *TRANSPORTS])
def test_a_client_without_descriptors_says_so_and_leaks_none(
    server: ServerProcess, transport: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_LIMIT, server.url, transport],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    for said in done.stdout.splitlines():
        assert "open files" in said, done.stdout
    assert done.stdout


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_busy_client_of_many_threads_opens_no_more_connections(
    start_server: StartServer, transport: str
) -> None:
    server = start_server()
    with infinistore.connect(server.url, transport=transport, channels=3) as client:
        begun = server.stats()["sessions_begun"]
        client.write_cache(bytes(64 * 4096), [(f"k{n}", n * 4096) for n in range(64)], 4096)
        client.sync()

        def read() -> None:
            target = bytearray(64 * 4096)
            for turn in range(200):
                block = (f"k{turn % 64}", 0)
                assert client.read_cache(target, [block], 4096).wait(30).all_ok

        threads = [threading.Thread(target=read) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        stats = server.stats()
        assert stats["sessions"] <= 3
        assert stats["sessions_begun"] - begun <= 2  # the other two of TCP, which come a bit later
        assert client.stats()["client_disconnects"] == 0


class Middlebox:
    """Passes one TCP port on to a server, and can cut all that passes through it."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    def cut(self) -> None:
        while self._open:
            each = self._open.pop()
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


def test_idle_connections_that_somebody_cuts_are_made_anew(server: ServerProcess) -> None:
    """As a firewall or a managed service does with those that said nothing for a while."""
    between = Middlebox(server.address)
    try:
        with infinistore.connect(f"127.0.0.1:{between.port}", "cut", transport="tcp") as client:
            cache = bytes(range(256)) * 16
            keys = [f"k{n}" for n in range(8)]  # of both channels
            client.write_cache(cache, [(key, 0) for key in keys], 4096)
            client.sync()
            for turn in range(1, 4):
                between.cut()
                until(
                    lambda turn=turn: client._session.native.counters()["disconnects"] >= 2 * turn
                )
                for key in keys:
                    target = bytearray(4096)
                    assert client.read_cache(target, [(key, 0)], 4096).wait(10).all_ok
                    assert target == cache
    finally:
        between.close()
