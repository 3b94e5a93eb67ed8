"""What a peer or a caller can do wrong: each gets a clear error, and the server lives on."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

import infinistore
from figures import RecordFigure
from server_process import ServerProcess
from transports import TRANSPORTS

Connect = Callable[..., infinistore.Client]
MIB = 1024**2
HEADER = struct.Struct("<IBBHQIIQ")  # docs/protocol.md section 1
MAGIC = 0x31534649
ERROR = 19
PROTOCOL = 9
LIVES = "a clear error; the server lives on"


@pytest.fixture
def lives_on(server: ServerProcess) -> Iterator[None]:
    """Whatever a test does to the server: it serves others afterwards, nothing is left."""
    yield
    with infinistore.connect(server.url, namespace="others") as client:
        cache = bytearray(b"still here" * 100)
        key = f"after-{time.monotonic_ns()}"
        client.write_cache(cache, [(key, 0)], len(cache), unit="bytes")
        client.sync()
        assert client.exists([key]) == [True]
    deadline = time.monotonic() + 5
    while (stats := server.stats())["reserved_bytes"] + stats["quarantined_bytes"]:
        assert time.monotonic() < deadline, stats
        time.sleep(0.02)
    assert stats["free_bytes"] + stats["sealed_bytes"] == stats["capacity_bytes"], (
        "free + reserved + quarantined + sealed = capacity"
    )


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def send_raw(server: ServerProcess, sent: bytes) -> bytes:
    """What the server says to these bytes until it closes, at most 5 s later."""
    with socket.create_connection(host_and_port(server.address), timeout=5) as stream:
        stream.sendall(sent)
        answer = b""
        try:
            while chunk := stream.recv(65536):
                answer += chunk
        except ConnectionResetError:  # closed with some of ours unread
            pass
        return answer


def error_of(answer: bytes) -> str:
    """The message of the ERROR frame that `answer` is."""
    magic, _, opcode, *_ = HEADER.unpack(answer[:32])
    assert (magic, opcode) == (MAGIC, ERROR)
    code, length = struct.unpack("<HH", answer[32:36])
    assert code == PROTOCOL
    return answer[36 : 36 + length].decode()


def header(opcode: int, body_bytes: int, payload_bytes: int = 0, magic: int = MAGIC) -> bytes:
    return HEADER.pack(magic, 1, opcode, 0, 1, body_bytes, 0, payload_bytes)


GARBAGE = {
    "garbage bytes": bytes(range(256)) * 16,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\r\n" * 32,
    "an unknown opcode": header(200, 0),
    "a body of 4 GiB": header(1, 2**32 - 1),
    "a payload of 2^63 bytes": header(5, 4, 2**63),
    "a request before HELLO": header(16, 0),
    "a HELLO of nonsense": header(1, 64) + b"\xff" * 64,
}


@pytest.mark.usefixtures("lives_on")
@pytest.mark.parametrize("what", GARBAGE)
def test_bytes_that_are_no_frame(
    what: str, server: ServerProcess, record_figure: RecordFigure
) -> None:
    said = error_of(send_raw(server, GARBAGE[what]))
    record_figure(what, f"ERROR(protocol): {said}", LIVES, ok=len(said) > 8)


@pytest.mark.usefixtures("lives_on")
@pytest.mark.parametrize("sent", [b"", header(1, 64)[:10], header(1, 64) + b"\x01" * 10])
def test_half_a_frame_is_not_waited_for_long(
    sent: bytes, server: ServerProcess, record_figure: RecordFigure
) -> None:
    start = time.monotonic()
    send_raw(server, sent)
    waited_s = time.monotonic() - start
    record_figure(
        f"{len(sent)} bytes of a frame, then silence",
        f"closed after {waited_s:.1f} s",
        "closed 2 s after the connection; the server lives on",
        ok=1.5 < waited_s < 4,
    )


@pytest.mark.usefixtures("lives_on")
def test_a_peer_that_leaves_in_the_middle_of_a_frame(server: ServerProcess) -> None:
    for length in (1, 31, 33, 60):
        with socket.create_connection(host_and_port(server.address), timeout=5) as stream:
            stream.sendall((header(1, 64) + b"\0" * 64)[:length])


@pytest.mark.usefixtures("lives_on")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wrong_sizes(transport: str, connect: Connect, record_figure: RecordFigure) -> None:
    client = connect(transport=transport)
    cache = bytearray(8192)
    client.write_cache(cache, [("k", 0)], 4096, unit="bytes")
    client.sync()
    client.write_cache(cache, [("k", 0)], 8192, unit="bytes")
    with pytest.raises(infinistore.errors.SizeMismatchError) as refused:
        client.sync()
    record_figure(
        f"another size for a key ({transport})",
        f"SizeMismatchError: {refused.value}",
        LIVES,
        ok=True,
    )
    with pytest.raises(infinistore.errors.UsageError) as wrong:
        client.write_cache(cache, [("k", 8000)], 4096, unit="bytes")
    record_figure(
        f"a block past its cache ({transport})", f"UsageError: {wrong.value}", LIVES, ok=True
    )
    assert "8000" in str(wrong.value)


@pytest.mark.usefixtures("lives_on")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_value_larger_than_the_pool(
    transport: str, server: ServerProcess, connect: Connect, record_figure: RecordFigure
) -> None:
    client = connect(transport=transport)
    size = server.pool_bytes + MIB
    client.write_cache(bytearray(size), [("giant", 0)], size, unit="bytes")
    with pytest.raises(infinistore.errors.TooLargeError) as refused:
        client.sync()
    record_figure(
        f"a value larger than the pool ({transport})",
        f"TooLargeError: {refused.value}",
        LIVES,
        ok=True,
    )


@pytest.mark.usefixtures("lives_on")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_pool_full_of_leased_values(
    transport: str, server: ServerProcess, connect: Connect, record_figure: RecordFigure
) -> None:
    client = connect(transport=transport)
    held = [f"held-{i}" for i in range(64)]
    cache = bytearray(MIB)
    written = []
    for key in held:  # one at a time: no more is staged than may be
        batch = client.write_cache(cache, [(key, 0)], MIB, unit="bytes")
        if not batch.wait(5).all_ok:
            break
        lease = client.lookup([key], lease_s=30)
        assert lease.wait(5) == 1
        written.append((key, lease.lease_id))
    # The next one meets a pool of which every page is pinned.
    client.write_cache(cache, [("one more", 0)], MIB, unit="bytes")
    with pytest.raises(infinistore.errors.OutOfMemoryError) as refused:
        client.sync()
    record_figure(
        f"a full pool, all of it leased ({transport})",
        f"OutOfMemoryError: {refused.value}",
        LIVES,
        ok=refused.value.retryable,
    )
    assert client.exists([written[0][0]]) == [True]
    client.release([lease_id for _, lease_id in written])
    client.delete([key for key, _ in written])


def test_an_unknown_host_and_a_port_without_a_server(record_figure: RecordFigure) -> None:
    for what, url, word in (
        ("an unknown host", "infinistore://no-such-host.invalid:22345", "no-such-host.invalid"),
        ("a port without a server", "infinistore://127.0.0.1:1", "127.0.0.1:1"),
    ):
        start = time.monotonic()
        with pytest.raises(infinistore.errors.ConnectError, match=word) as refused:
            infinistore.connect(url)
        waited_s = time.monotonic() - start
        record_figure(
            what,
            f"ConnectError after {waited_s:.1f} s: {refused.value}",
            "a clear error within 5 s",
            ok=waited_s < 5,
        )


@pytest.mark.usefixtures("lives_on")
def test_a_port_in_use(server: ServerProcess, record_figure: RecordFigure) -> None:
    port = host_and_port(server.address)[1]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "infinistore.server", f"--port={port}", "--admin-port=0"),
            *("--pool=32MiB", "--unix-socket=none"),
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    said = done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    record_figure("a port in use", said, LIVES, ok=done.returncode == 2 and str(port) in said)


def test_a_missing_extra(record_figure: RecordFigure) -> None:
    """As where only `pip install infinistore` was run: the connector says what else it takes."""
    script = """
import sys
sys.modules["vllm"] = None
from infinistore.connectors.vllm import InfiniStoreConnector
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50
    )
    said = done.stderr.splitlines()[-1]
    record_figure(
        "a missing extra",
        said,
        "a clear error with the remedy",
        ok=done.returncode != 0 and "pip install" in said,
    )
