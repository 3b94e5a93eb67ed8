"""Who has no token learns nothing and changes nothing, whatever he asks and wherever."""

from __future__ import annotations

import http.client
import json
import mmap
import os
import re
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import infinistore
import wire_client as wire
from infinistore.config import ServerConfig, read_readers_token
from infinistore.server.admin import ROUTES
from server_process import ServerProcess
from wire_client import WireClient

TOKEN = "t0p-s3cret-of-this-test"
READ_TOKEN = "s3cret-of-those-who-read"
KEY, VALUE = b"key-of-the-owner", b"value of the owner" * 100
SPACE = "space-of-the-owner"
# The protocol's last opcode.
LAST = max(
    int(number)
    for number in re.findall(
        r"^\| (\d+) \| [A-Z]+ \| (?:client|server)",
        (Path(__file__).parents[2] / "docs/protocol.md").read_text(),
        re.M,
    )
)
WRONG = (
    "",
    "wrong",
    TOKEN[:-1],
    READ_TOKEN[:-1],
    READ_TOKEN * 2,
    TOKEN * 2,
    TOKEN.upper(),
    TOKEN + "\n",
    "\u00e9" * 8,
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a token and one for readers, which holds one value."""
    readers = tmp_path_factory.mktemp("secret") / "readers"
    readers.write_text(READ_TOKEN + "\n")
    readers.chmod(0o600)
    running = ServerProcess(
        f"--read-token-file={readers}", environment={"INFINISTORE_TOKEN": TOKEN}
    )
    try:
        with WireClient(running.address, token=TOKEN.encode(), space=SPACE.encode()) as owner:
            assert owner.put_value(KEY, VALUE) == [wire.OK]
        yield running
        with WireClient(running.address, token=TOKEN.encode(), space=SPACE.encode()) as owner:
            assert owner.get_value(KEY, len(VALUE)) == (wire.OK, VALUE)
        assert running.stop() == 0
        assert "infinistore" in running.log()
        assert TOKEN not in running.log()
        assert READ_TOKEN not in running.log()
    finally:
        running.kill()


def bodies() -> dict[int, bytes]:
    """A well-formed request of every opcode, about what the owner has."""
    keys = wire.key_list([KEY])
    asked = {
        wire.PUT: wire.put([KEY], len(VALUE), replace=True),
        wire.FILL: struct.pack("<I", 1),
        wire.GET: wire.get([KEY], len(VALUE)),
        wire.MATCH: struct.pack("<II", 1000, 1) + keys,
        wire.EXISTS: keys,
        wire.ERASE: keys,
        wire.LEASE: struct.pack("<IIQ", 0, 1, 1),
        wire.ABORT: keys,
        wire.SUSPECT: keys,
    }
    return {opcode: asked.get(opcode, b"") for opcode in (0, *range(2, LAST + 1), LAST + 1, 255)}


def answers(client: WireClient) -> bytes:
    """All that comes until the server ends the connection; every frame of it is ERROR."""
    heard = b""
    try:
        while True:
            frame = client.receive()
            assert frame.opcode == wire.ERROR
            heard += frame.body + frame.payload
    except ConnectionError:
        return heard


def leaks(heard: bytes) -> list[str]:
    secret = {
        "token": TOKEN.encode(),
        "readers": READ_TOKEN.encode(),
        "key": KEY,
        "value": VALUE[:18],
        "space": SPACE.encode(),
    }
    return [name for name, data in secret.items() if data in heard]


@pytest.mark.parametrize("over", ["tcp", "unix"])
@pytest.mark.parametrize("opcode", bodies())
def test_no_opcode_is_served_before_a_hello(guarded: ServerProcess, over: str, opcode: int) -> None:
    address = guarded.address if over == "tcp" else guarded.unix_path
    with WireClient(address, greet=False) as stranger:
        stranger.send(wire.frame(opcode, 1, bodies()[opcode]))
        stranger.socket.shutdown(1)
        assert leaks(answers(stranger)) == []
        assert stranger.fds == []


@pytest.mark.parametrize("over", ["tcp", "unix"])
@pytest.mark.parametrize("token", WRONG)
def test_a_wrong_token_opens_nothing(guarded: ServerProcess, over: str, token: str) -> None:
    """And what is sent behind it, in one piece, is not heard."""
    address = guarded.address if over == "tcp" else guarded.unix_path
    with WireClient(address, greet=False) as stranger:
        hello = wire.frame(wire.HELLO, 1, wire.hello(SPACE.encode(), token.encode()))
        for number, (opcode, body) in enumerate(bodies().items(), 2):
            hello += wire.frame(opcode, number, body)
        stranger.send(hello)
        first = stranger.receive()
        assert (first.opcode, first.error[0]) == (wire.ERROR, wire.UNAUTHORIZED)
        assert leaks(first.body + answers(stranger)) == []
        assert stranger.fds == []


def test_the_unix_socket_wants_token_and_nonce(guarded: ServerProcess) -> None:
    assert stat.S_IMODE(Path(guarded.unix_path).stat().st_mode) == 0o600
    with WireClient(guarded.unix_path, greet=False) as stranger:
        answer = stranger.call(wire.HELLO, wire.hello(token=TOKEN.encode(), nonce=b"n" * 16))
        assert answer.error[0] == wire.UNAUTHORIZED
        assert stranger.fds == []


def ask(server: ServerProcess, method: str, path: str, token: str | bytes) -> tuple[int, bytes]:
    host, _, port = server.admin_address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        shown = token.encode() if isinstance(token, str) else token
        headers = {"Authorization": b"Bearer " + shown} if shown else {}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read() + str(answer.headers).encode()
    finally:
        connection.close()


@pytest.mark.parametrize("token", [*(t for t in WRONG if "\n" not in t), b"\xff\xfe", "Bearer x"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_endpoint_wants_the_token(
    guarded: ServerProcess, route: object, token: str | bytes
) -> None:
    status, body = ask(guarded, route.method, route.path, token)  # type: ignore[attr-defined]
    if route.is_open:  # type: ignore[attr-defined]
        assert status == 200
    else:
        assert status == 401
        assert b"show the token" in body
        assert b"keys" not in body
    assert leaks(body) == []


def test_health_without_the_token_tells_the_state_only(guarded: ServerProcess) -> None:
    assert json.loads(ask(guarded, "GET", "/health", "")[1].split(b"}")[0] + b"}") == {
        "status": "ok"
    }


def test_what_is_refused_is_counted(guarded: ServerProcess) -> None:
    def refused() -> int:
        status, body = ask(guarded, "GET", "/metrics", TOKEN)
        assert status == 200
        return int(body.split(b"\ninfinistore_sessions_unauthorized_total ")[1].split(b"\n")[0])

    before = refused()
    with WireClient(guarded.address, greet=False) as stranger:
        stranger.call(wire.HELLO, wire.hello(token=b"wrong"))
    assert refused() == before + 1


def test_no_secret_shows_in_the_list_of_processes_or_in_errors(guarded: ServerProcess) -> None:
    assert TOKEN.encode() not in Path(f"/proc/{guarded.pid}/cmdline").read_bytes()
    for token in ("wrong-secret", None):
        with pytest.raises(infinistore.AuthError) as refused:
            infinistore.connect(guarded.url, token=token or "x-wrong-secret")
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.parametrize("flag", ["--host", "--admin-host"])
def test_a_wide_address_needs_a_token(flag: str, host: str) -> None:
    command = [sys.executable, "-m", "infinistore.server", f"{flag}={host}"]
    command += ["--port=0", "--admin-port=0", "--pool=16MiB", "--unix-socket=none"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "--insecure" in ended.stderr


# Answered with something else than a refusal: they change nothing.
READS = (wire.GET, wire.MATCH, wire.EXISTS, wire.LEASE, wire.STATS, wire.PING)


@pytest.mark.parametrize("over", ["tcp", "unix"])
@pytest.mark.parametrize("opcode", sorted(set(bodies()) | {wire.PING}))
def test_a_readers_token_changes_nothing(guarded: ServerProcess, over: str, opcode: int) -> None:
    """Whatever the opcode: it reads, is refused, is not heard, or ends the connection."""
    greeting = {"space": SPACE.encode(), "token": READ_TOKEN.encode()}
    with WireClient(guarded.address, **greeting) as first:
        nonce = first.nonce
    address = guarded.address if over == "tcp" else guarded.unix_path
    with WireClient(address, nonce=nonce, **greeting) as reader:
        assert reader.welcome is not None
        assert reader.welcome.opcode == wire.WELCOME
        reader.send(wire.frame(opcode, 2, bodies().get(opcode, b"")))
        if opcode in (wire.PUT, wire.ERASE, wire.ABORT, wire.SUSPECT):
            refused = reader.receive()
            assert (refused.opcode, refused.request_id) == (wire.ERROR, 2)
            assert refused.error[0] == wire.UNAUTHORIZED
            assert "may only read" in refused.error[1]
        elif opcode in READS:
            assert reader.receive().opcode != wire.ERROR
    with WireClient(guarded.address, **greeting) as after:
        assert after.get_value(KEY, len(VALUE)) == (wire.OK, VALUE)


def test_a_readers_token_maps_the_pool_for_reading_only(guarded: ServerProcess) -> None:
    greeting = {"space": SPACE.encode(), "token": READ_TOKEN.encode()}
    with (
        WireClient(guarded.address, **greeting) as first,
        WireClient(guarded.unix_path, nonce=first.nonce, **greeting) as reader,
    ):
        assert reader.fds
        for fd in reader.fds:
            mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ).close()
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.pwrite(fd, b"x", 0)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_readers_token_asks_and_stops_nothing(guarded: ServerProcess, route: object) -> None:
    method, path = route.method, route.path  # type: ignore[attr-defined]
    status, body = ask(guarded, method, path, READ_TOKEN)
    if path in ("/purge", "/drain", "/verify", "/integrity"):
        assert status == 403
        assert b"for reading only" in body
    else:
        assert method == "GET" or path == "/explain"
        assert status in (200, 400)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_client_with_a_readers_token_reads_without_asking_for_it(
    guarded: ServerProcess, transport: str
) -> None:
    with infinistore.connect(guarded.url, SPACE, READ_TOKEN, transport=transport) as reader:
        assert reader.server["read_only"]
        target = bytearray(len(VALUE))
        assert reader.read_cache(target, [(KEY, 0)], len(VALUE)).wait().all_ok
        assert target == VALUE
        with pytest.raises(infinistore.AuthError, match="may only read"):
            reader.delete([KEY])
        assert reader.write_cache(target, [("new", 0)], len(VALUE)).wait() == [
            infinistore.Code.UNAUTHORIZED
        ]
        assert reader.exists([KEY, "new"]) == [True, False]
        reader.close()


def test_a_readers_token_alone_would_let_anybody_write(tmp_path: Path) -> None:
    (tmp_path / "readers").write_text(READ_TOKEN)
    (tmp_path / "readers").chmod(0o600)
    config = ServerConfig(read_token_file=str(tmp_path / "readers"))
    with pytest.raises(infinistore.ConfigError, match="anybody could write"):
        read_readers_token(config, "")
    with pytest.raises(infinistore.ConfigError, match="make another"):
        read_readers_token(config, READ_TOKEN)
    assert read_readers_token(config, TOKEN) == READ_TOKEN
