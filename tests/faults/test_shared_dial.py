"""Shared memory that is asked for and not had: a server that goes is no lack of this machine's."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import infinistore
import wire_client as wire
from infinistore.errors import ConnectError, OverloadedError, RequestTimeoutError, SetupError
from server_process import ServerProcess
from wire_client import WireClient

DRAINING = 19
PATH_AT = 64  # in WELCOME


class Actor:
    """Answers HELLO over TCP as the real server does, but names a unix socket of the test's own."""

    def __init__(self, server: ServerProcess, path: Path, *, stays: bool, answer: bytes) -> None:
        with WireClient(server.address) as client:
            assert client.welcome is not None
            body = client.welcome.body
        (size,) = struct.unpack_from("<H", body, PATH_AT)
        rest = body[PATH_AT + 2 + size :]
        self._welcome = body[:PATH_AT] + wire.text16(str(path).encode()) + rest
        self._stays = stays
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(str(path))
        if answer or stays:
            self._unix.listen()
        self._ends = threading.Event()
        threads = [threading.Thread(target=work) for work in (self._serve_tcp, self._serve_unix)]
        self._threads = threads if answer else threads[:1]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        return f"infinistore://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve_tcp(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(wire.frame(wire.WELCOME, 1, self._welcome))
            if self._stays:
                self._ends.wait(10)

    def _serve_unix(self) -> None:
        peer, _ = self._unix.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(self._answer)

    def close(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        self._unix.close()


@contextlib.contextmanager
def acting(
    server: ServerProcess, folder: Path, *, stays: bool = True, answer: bytes = b""
) -> Iterator[str]:
    actor = Actor(server, folder / "s", stays=stays, answer=answer)
    try:
        yield actor.url
    finally:
        actor.close()


def test_a_server_that_does_not_answer_there(server: ServerProcess, tmp_path: Path) -> None:
    with acting(server, tmp_path) as url, pytest.raises(RequestTimeoutError) as caught:
        infinistore.connect(url, transport="shm", connect_timeout_s=0.3)
    assert caught.value.retryable


def test_a_server_that_drains(server: ServerProcess, tmp_path: Path) -> None:
    body = struct.pack("<H", DRAINING) + wire.text16(b"the server is going away")
    answer = wire.frame(wire.ERROR, 1, body)
    with acting(server, tmp_path, answer=answer) as url, pytest.raises(OverloadedError):
        infinistore.connect(url, transport="shm")


def test_a_server_that_has_gone_meanwhile(server: ServerProcess, tmp_path: Path) -> None:
    with acting(server, tmp_path, stays=False) as url, pytest.raises(ConnectError):
        infinistore.connect(url, transport="shm")


def test_a_server_that_lives_and_hangs_up(server: ServerProcess, tmp_path: Path) -> None:
    answer = wire.frame(wire.PING, 1)[:1]  # and the end: as where processes cannot be watched
    with (
        acting(server, tmp_path, answer=answer) as url,
        pytest.raises(SetupError, match="shared memory cannot be used"),
    ):
        infinistore.connect(url, transport="shm")
