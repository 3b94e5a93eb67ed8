"""TLS on the data port: who is trusted, who is not, and peers that stall, lie and go away."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infinistore
from certificates import HAS_OPENSSL, Authority, flags_of
from etcd_process import free_port
from infinistore import ConnectError
from server_process import ServerProcess
from waiting import until
from wire_client import ERROR, HELLO, WELCOME, WireClient, frame, hello

pytestmark = pytest.mark.skipif(not HAS_OPENSSL, reason="no openssl here")
HELLO_S = 2.0  # what a server gives a connection until it has said who it is
Connect = Callable[..., infinistore.Client]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("server")


@pytest.fixture(scope="module")
def server(pair: tuple[Path, Path]) -> Iterator[ServerProcess]:
    running = ServerProcess(*flags_of(pair))
    try:
        yield running
        assert running.stop() == 0, running.log()
    finally:
        running.kill()


@pytest.fixture
def trusting(connect: Connect, authority: Authority) -> Connect:
    """`connect`, by TCP and by who trusts the authority."""

    def dial(to: Any = None, **settings: Any) -> infinistore.Client:
        settings = {"transport": "tcp", "tls_ca_file": str(authority.chain)} | settings
        return connect(to, **settings)

    return dial


def store_and_load(client: infinistore.Client, size: int = 300_000, count: int = 20) -> None:
    source = np.random.default_rng(size).integers(0, 256, size * count, dtype=np.uint8)
    blocks = [(f"k{size}-{index}", index * size) for index in range(count)]
    assert client.write_cache(source, blocks, size).wait().all_ok
    target = np.zeros_like(source)
    assert client.read_cache(target, blocks, size).wait().all_ok
    assert np.array_equal(source, target)


def refusal(url: str, **settings: Any) -> str:
    with pytest.raises(ConnectError) as caught:
        infinistore.connect(url, transport="tcp", **settings).close()
    return str(caught.value)


def raw(server: ServerProcess) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def secured(server: ServerProcess, authority: Authority) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority.chain))
    return context.wrap_socket(raw(server), server_hostname="127.0.0.1")


def ended(sock: socket.socket) -> bool:
    """Waits for the other end's end, whatever comes before."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while sock.recv(65536):
            pass
    return True


# ---- who may speak with whom ----


@pytest.mark.parametrize("size", [1, 1000, 16384, 65536, 300_000, 5_000_001])
def test_bytes_come_back_over_tls(trusting: Connect, size: int) -> None:
    client = trusting()
    assert client.transport == "tcp"
    store_and_load(client, size, count=3 if size > 10**6 else 20)


def test_on_one_host_the_bytes_go_through_shared_memory(trusting: Connect) -> None:
    client = trusting(transport="auto")
    assert client.transport == "shm"
    store_and_load(client)


def test_names_are_checked_as_addresses_are(server: ServerProcess, trusting: Connect) -> None:
    port = server.address.rpartition(":")[2]
    store_and_load(trusting(f"infinistores://localhost:{port}"))


def test_ssl_cert_file_names_who_is_trusted(server: ServerProcess, authority: Authority) -> None:
    code = f"import infinistore; infinistore.connect({server.url!r}, transport='tcp').close()"
    for trusted in (True, False):
        environment = {k: v for k, v in os.environ.items() if k != "SSL_CERT_FILE"}
        if trusted:
            environment["SSL_CERT_FILE"] = str(authority.chain)
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (ended.returncode == 0) == trusted, ended.stderr
    assert "tls_ca_file" in ended.stderr
    assert "SSL_CERT_FILE" in ended.stderr


def test_a_stranger_is_not_trusted(server: ServerProcess, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    message = refusal(server.url, tls_ca_file=str(stranger.chain))
    assert server.address in message
    assert "nobody whom this client trusts" in message
    assert "tls_ca_file" in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"names": "DNS:elsewhere.example"}, "another name than 127.0.0.1"),
        ({"days": -1}, "has expired"),
    ],
)
def test_a_certificate_that_does_not_hold_is_named(
    start_server: Callable[..., ServerProcess],
    authority: Authority,
    options: dict[str, Any],
    said: str,
) -> None:
    other = start_server(*flags_of(authority.sign("other", **options)))
    assert said in refusal(other.url, tls_ca_file=str(authority.chain))


def test_a_server_without_tls_is_named(
    start_server: Callable[..., ServerProcess], authority: Authority
) -> None:
    plain = start_server()
    trust = str(authority.chain)
    # Not by its deadline: that would be another error.
    message = refusal(f"infinistores://{plain.address}", tls_ca_file=trust, connect_timeout_s=60)
    assert "the server does not speak TLS" in message
    assert "infinistore://" in message
    until(lambda: "the client speaks TLS and this server does not" in plain.log())
    assert plain.stats()["protocol_errors"] == 1


def test_a_client_without_tls_is_told_and_counted(server: ServerProcess) -> None:
    before = server.stats()["protocol_errors"]
    with pytest.raises(infinistore.ProtocolError, match="this server speaks TLS") as caught:
        infinistore.connect(f"infinistore://{server.address}", transport="tcp").close()
    assert "infinistores://" in str(caught.value)
    assert server.stats()["protocol_errors"] == before + 1


def test_a_full_server_says_so_to_a_client_by_tls(
    start_server: Callable[..., ServerProcess], authority: Authority, pair: tuple[Path, Path]
) -> None:
    small = start_server(*flags_of(pair), "--sessions-max=1")
    settings = {"transport": "tcp", "tls_ca_file": str(authority.chain), "channels": 1}
    with (
        infinistore.connect(small.url, **settings),
        pytest.raises(infinistore.OverloadedError, match="sessions-max"),
    ):
        infinistore.connect(small.url, **settings).close()


def test_what_is_missing_here_is_named(server: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(infinistore.SetupError, match="holds no certificates"):
        infinistore.connect(server.url, tls_ca_file=str(tmp_path / "none.pem")).close()
    code = f"import infinistore; infinistore.connect({server.url!r}).close()"
    environment = os.environ | {"INFINISTORE_SSL_LIBRARY": "libnowhere.so.9"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30
    )
    assert "TLS cannot be used: libnowhere.so.9" in ended.stderr
    assert "install OpenSSL" in ended.stderr


def test_older_versions_of_tls_are_refused(server: ServerProcess) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with contextlib.suppress(ssl.SSLError):
        context.set_ciphers("ALL:@SECLEVEL=0")
    with raw(server) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(
    server: ServerProcess, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=str(authority.chain))
    context.minimum_version = context.maximum_version = version
    with context.wrap_socket(raw(server), server_hostname="127.0.0.1") as sock:
        sock.sendall(frame(HELLO, 1, hello()))
        assert sock.recv(65536)[5] == WELCOME


def test_the_nodes_of_a_cluster_speak_tls(
    start_server: Callable[..., ServerProcess],
    authority: Authority,
    pair: tuple[Path, Path],
    trusting: Connect,
) -> None:
    places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    url = "infinistores://" + ",".join(places)
    nodes = [
        start_server(
            *flags_of(pair),
            f"--port={place.rpartition(':')[2]}",
            f"--cluster={url}",
            environment={"INFINISTORE_TLS_CA_FILE": str(authority.chain)},
        )
        for place in places
    ]
    for node in nodes:
        until(
            lambda node=node: [r["answers"] for r in node.admin("/cluster")["nodes"]] == [True] * 2
        )  # type: ignore[misc]
    store_and_load(trusting(url))
    assert "certificate" not in nodes[0].log()
    with pytest.raises(infinistore.InfiniStoreError):
        infinistore.connect(url.replace("infinistores", "infinistore")).close()


# ---- certificates that change ----


def test_a_new_certificate_is_shown_and_connections_keep_theirs(
    start_server: Callable[..., ServerProcess], tmp_path: Path, trusting: Connect
) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    files = (tmp_path / "chain", tmp_path / "key")

    def put(pair: tuple[Path, Path]) -> None:
        for source, target in zip(pair, files, strict=True):
            shutil.copy(source, f"{target}.new")
            os.replace(f"{target}.new", target)

    def trusts(authority: Authority) -> bool:
        try:
            infinistore.connect(changing.url, tls_ca_file=str(authority.chain)).close()
        except ConnectError:
            return False
        return True

    one, other = first.sign("one"), second.sign("other")
    put(one)
    changing = start_server(*flags_of(files))
    client = trusting(changing, tls_ca_file=str(first.chain))
    put(other)
    until(lambda: trusts(second))
    assert not trusts(first)
    store_and_load(client)
    put((one[0], other[1]))  # no pair
    until(lambda: "the old one stays" in changing.log())
    assert trusts(second)
    assert changing.stop() == 0


# ---- peers that misbehave ----


def test_who_stalls_in_the_handshake_is_let_go(server: ServerProcess) -> None:
    sockets = [raw(server) for _ in range(4)]
    sockets[1].sendall(b"\x16")  # a record's beginning
    sockets[2].sendall(b"\x16\x03\x01\x02\x00\x01")  # a handshake's
    sockets[3].sendall(b"\x16\x03\x01\x40\x00" + b"\x01" * 100)
    began = time.monotonic()
    for sock in sockets:
        with sock:
            assert ended(sock)
    assert time.monotonic() - began < HELLO_S + 3
    until(lambda: server.stats()["sessions"] == 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x00\x05\xff\xff\xff\xff\xff",
        b"\x15\x03\x03\x00\x02\x02\x28",
    ],
)
def test_garbage_that_looks_like_tls_ends_its_connection(
    server: ServerProcess, trusting: Connect, garbage: bytes
) -> None:
    client = trusting()
    with raw(server) as sock:
        sock.sendall(garbage)
        assert ended(sock)
    store_and_load(client)


def test_plain_bytes_are_answered_in_plain(server: ServerProcess) -> None:
    with WireClient(server.address, greet=False) as wire:
        wire.send(frame(HELLO, 1, hello(token=b"a secret")))
        answer = wire.receive()
        assert answer.opcode == ERROR
        assert "this server speaks TLS" in answer.error[1]
        assert wire.is_closed_by_peer()
    assert "a secret" not in server.log()


@pytest.mark.parametrize("farewell", [True, False])
def test_a_cut_within_a_frame_leaves_nothing(
    server: ServerProcess, authority: Authority, farewell: bool
) -> None:
    sock = secured(server, authority)
    sock.sendall(frame(HELLO, 1, hello()) + frame(2, 2, b"x" * 100)[:50])
    assert sock.recv(65536)[5] == WELCOME
    if farewell:
        sock.unwrap().close()
    else:
        os.close(sock.detach())  # no close_notify
    until(lambda: server.stats()["sessions"] == 0)
    assert server.stats()["unaccounted_bytes"] == 0


def test_a_server_that_stalls_in_the_handshake_is_given_up(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"infinistores://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(infinistore.RequestTimeoutError, match="handshake of TLS"):
            infinistore.connect(
                url, tls_ca_file=str(authority.chain), connect_timeout_s=0.3
            ).close()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, b"\x16\x03" * 99])
def test_a_server_that_answers_something_else_is_named(authority: Authority, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        message = refusal(f"infinistores://{address}", tls_ca_file=str(authority.chain))
        thread.join()
    assert address in message


class Relay:
    """One connection to `target`, forwarded.

    `crumbs`: so many bytes of either way come one by one. `flips`: a bit of each answer is changed.
    """

    def __init__(self, target: str, crumbs: int = 0) -> None:
        self.flips = False
        self.crumbs = crumbs
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"infinistores://127.0.0.1:{self._listener.getsockname()[1]}"
        self._target = target
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        host, _, port = self._target.rpartition(":")
        server = socket.create_connection((host, int(port)))
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._carry, args=(server, client, True), daemon=True)
        back.start()
        self._carry(client, server, False)
        back.join()
        for each in (client, server, self._listener):
            each.close()

    def _carry(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            for _ in range(self.crumbs):
                target.sendall(source.recv(1))
                time.sleep(0.005)  # so that it arrives by itself
            while chunk := source.recv(65536):
                if is_answer and self.flips:
                    chunk = chunk[:-1] + bytes([chunk[-1] ^ 1])
                target.sendall(chunk)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def test_a_handshake_that_comes_in_crumbs_is_one(server: ServerProcess, trusting: Connect) -> None:
    """What begins as TLS is taken for TLS however little of it is there at first."""
    for crumbs in (1, 3, 7):
        store_and_load(trusting(Relay(server.address, crumbs).url, channels=1), 50_000 + crumbs)


def test_bytes_that_are_changed_on_the_way_end_the_connection(
    server: ServerProcess, trusting: Connect
) -> None:
    relay = Relay(server.address)
    client = trusting(relay.url, channels=1)
    store_and_load(client, 50_000)
    relay.flips = True
    target = np.zeros(50_000, np.uint8)
    batch = client.read_cache(target, [("k50000-0", 0)], 50_000)
    batch.wait()
    assert "TLS failed" in str(batch.error())


# ---- processes ----


def _child(url: str, chain: str, results: Any) -> None:
    with infinistore.connect(url, transport="tcp", tls_ca_file=chain) as client:
        store_and_load(client, 70_000)
    results.put("well")


def test_a_forked_child_connects_anew_while_others_shake_hands(
    server: ServerProcess, authority: Authority, trusting: Connect
) -> None:
    client, chain = trusting(), str(authority.chain)
    stop = threading.Event()

    def dial() -> None:
        while not stop.is_set():
            infinistore.connect(server.url, transport="tcp", tls_ca_file=chain).close()

    threads = [threading.Thread(target=dial) for _ in range(2)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    children = [context.Process(target=_child, args=(server.url, chain, results)) for _ in range(4)]
    for child in children:
        child.start()
    assert [results.get(timeout=30) for _ in children] == ["well"] * 4
    for child in children:
        child.join(30)
    stop.set()
    for thread in threads:
        thread.join()
    store_and_load(client)
