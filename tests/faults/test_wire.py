"""Peers that speak the protocol badly, slowly or by the thousand; others are served meanwhile."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable, Iterator

import pytest

import wire_client as wire
from server_process import ServerProcess
from waiting import until
from wire_client import WireClient

MIB = 1024**2
StartServer = Callable[..., ServerProcess]


@pytest.fixture
def bystander(server: ServerProcess) -> Iterator[WireClient]:
    """A client that must not notice anything; afterwards nothing of the others may be left."""
    with WireClient(server.address, space=b"bystander") as client:
        assert client.put_value(b"kept", b"value" * 100) in ([wire.OK], [wire.PRESENT])
        yield client
        assert client.get_value(b"kept", 500) == (wire.OK, b"value" * 100)
        until(lambda: server.stats()["sessions"] == 1)
    stats = server.stats()
    assert stats["reserved_bytes"] == stats["quarantined_bytes"] == stats["pins"] == 0
    parts = ("free_bytes", "reserved_bytes", "quarantined_bytes", "sealed_bytes")
    assert sum(stats[part] for part in parts) == stats["capacity_bytes"]


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


@pytest.mark.usefixtures("bystander")
def test_thousands_of_connections_that_come_and_go(server: ServerProcess) -> None:
    before = open_files(server)
    chance = random.Random(3)
    for number in range(2000):
        client = WireClient(server.address, greet=False)
        if number % 3 == 0:
            client.send(wire.frame(wire.HELLO, 1, wire.hello()))
        if number % 5 == 0:
            client.send(wire.frame(wire.PUT, 2, wire.put([b"k"], 1000))[: chance.randrange(70)])
        client.close()
    until(lambda: server.stats()["sessions"] == 1)
    until(lambda: open_files(server) <= before)


def test_as_many_connections_as_may_be_and_one_more(start_server: StartServer) -> None:
    server = start_server("--sessions-max=20")
    clients = [WireClient(server.address) for _ in range(20)]
    with WireClient(server.address, greet=False) as one_more:
        answer = one_more.receive()
        assert answer.opcode == wire.ERROR
        assert answer.error[0] == wire.OVERLOADED
    clients.pop().close()
    until(lambda: server.stats()["sessions"] == 19)
    with WireClient(server.address) as admitted:
        assert admitted.call(wire.PING).opcode == wire.RESULT
    for client in clients:
        client.close()


def test_no_descriptor_is_left(start_server: StartServer) -> None:
    """Connections beyond RLIMIT_NOFILE are turned away, and the server neither spins nor stops."""
    import resource

    server = start_server()
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (open_files(server) + 10, hard))
    with WireClient(server.address) as first:
        others = [WireClient(server.address, greet=False) for _ in range(40)]
        time.sleep(0.2)
        used_s = cpu_seconds(server)
        time.sleep(0.5)
        assert cpu_seconds(server) - used_s < 0.25
        assert first.call(wire.PING).opcode == wire.RESULT
        for other in others:
            other.close()
        until(lambda: first.call(wire.PING).opcode == wire.RESULT)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        with WireClient(server.address) as later:
            assert later.call(wire.PING).opcode == wire.RESULT


def cpu_seconds(server: ServerProcess) -> float:
    with open(f"/proc/{server.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_reader_that_does_not_read_slows_nobody(
    server: ServerProcess, bystander: WireClient
) -> None:
    value = random.Random(1).randbytes(4 * MIB)
    with WireClient(server.address) as slow:
        assert slow.put_value(b"large", value) == [wire.OK]
        for _ in range(8):
            slow.request(wire.GET, wire.get([b"large"], len(value)))
        start = time.monotonic()
        for _ in range(100):
            assert bystander.get_value(b"kept", 500)[0] == wire.OK
        assert time.monotonic() - start < 5
        received = [slow.receive() for _ in range(8)]  # and all of it comes in the end
        assert all(data.payload == value for data in received)
        slow.call(wire.ERASE, wire.key_list([b"large"]))


@pytest.mark.usefixtures("bystander")
def test_payloads_that_nobody_asked_for_or_of_another_size(server: ServerProcess) -> None:
    one = struct.pack("<I", 1)
    with WireClient(server.address) as client:
        # A FILL of nothing: discarded, counted, no harm done.
        client.send(wire.frame(wire.FILL, 77, one, bytes(100_000)))
        assert client.put_value(b"k", b"value") == [wire.OK]
        # Shorter than was granted.
        request_id = client.request(wire.PUT, wire.put([b"m"], 100))
        assert client.receive().outcomes == [wire.OK]
        client.send(wire.frame(wire.FILL, request_id, one, bytes(20)))
        answer = client.receive()
        assert (answer.opcode, answer.error[0]) == (wire.ERROR, wire.PROTOCOL)
        assert client.is_closed_by_peer()


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("cut", [0, 1, 4096, 99_999, 100_000, 100_007])
def test_a_writer_that_leaves_in_the_middle_of_its_payload(cut: int, server: ServerProcess) -> None:
    value = bytes(100_000)
    payload = value + struct.pack("<Q", wire.checksum(value))
    with WireClient(server.address) as client:
        request_id = client.request(wire.PUT, wire.put([b"torn"], len(value)))
        assert client.receive().outcomes == [wire.OK]
        fill = wire.frame(wire.FILL, request_id, struct.pack("<I", 1), payload)
        client.send(fill[: len(fill) - len(payload) + cut])
    with WireClient(server.address) as other:
        until(lambda: server.stats()["reserved_bytes"] == 0)
        assert other.get_value(b"torn", len(value))[0] == wire.MISSING


@pytest.mark.usefixtures("bystander")
def test_the_largest_batch(server: ServerProcess) -> None:
    keys = [b"%05d" % number for number in range(4096)]
    tail = struct.pack("<Q", wire.checksum(b"12345678")) * len(keys)
    with WireClient(server.address) as client:
        request_id = client.request(wire.PUT, wire.put(keys, 8))
        assert set(client.receive().outcomes) == {wire.OK}
        fill = struct.pack("<I", len(keys))
        client.send(wire.frame(wire.FILL, request_id, fill, b"12345678" * len(keys) + tail))
        assert set(client.receive().outcomes) == {wire.OK}
        data = client.call(wire.GET, wire.get(keys, 8))
        assert data.payload == b"12345678" * len(keys)
        assert set(client.call(wire.ERASE, wire.key_list(keys)).outcomes) == {wire.OK}
        client.send(wire.header(wire.EXISTS, 900, struct.pack("<I", 4097) + bytes(4097)))
        client.send(struct.pack("<I", 4097) + b"\x01" * 4097)
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("space", [b"\xff", b"kv\xc0\x80", b"\xed\xa0\x80", b"\xe5\x90"])
def test_a_namespace_that_is_no_text(space: bytes, server: ServerProcess) -> None:
    with WireClient(server.address, greet=False) as client:
        answer = client.call(wire.HELLO, wire.hello(space))
        assert (answer.opcode, answer.error[0]) == (wire.ERROR, wire.INVALID)
        assert client.is_closed_by_peer()
    with WireClient(server.address, greet=False) as client:
        assert client.call(wire.HELLO, wire.hello("名/ä".encode())).opcode == wire.WELCOME


def test_a_wrong_token_and_a_wrong_version(start_server: StartServer) -> None:
    server = start_server(environment={"INFINISTORE_TOKEN": "secret"})
    for greeting, code in (
        (wire.hello(), wire.UNAUTHORIZED),
        (wire.hello(token=b"secret!"), wire.UNAUTHORIZED),
        (wire.hello(token=b"secret", versions=(2, 9)), wire.VERSION),
    ):
        with WireClient(server.address, greet=False) as client:
            answer = client.call(wire.HELLO, greeting)
            assert (answer.opcode, answer.error[0]) == (wire.ERROR, code)
            assert client.is_closed_by_peer()
    with WireClient(server.address, token=b"secret") as client:
        assert client.welcome is not None
        assert client.welcome.opcode == wire.WELCOME
        # The unix socket asks for the nonce that only TCP tells.
        with WireClient(server.unix_path, token=b"secret", nonce=client.nonce) as local:
            assert local.welcome is not None
            assert local.welcome.opcode == wire.WELCOME
            assert local.fds
        with WireClient(server.unix_path, token=b"secret") as stranger:
            assert stranger.welcome is not None
            assert stranger.welcome.error[0] == wire.UNAUTHORIZED
    assert "secret" not in server.log()
    assert server.stop() == 0
