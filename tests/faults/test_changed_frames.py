"""A bit that changes on the way, in any header or body: nobody acts on it, nobody gets its bytes.

Without a sum in each frame a changed bit of a PUT's key stored the value under another key, and one
of a GET's key brought another key's bytes, whose own checksum was right.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import wire_client as wire
from server_process import ServerProcess
from wire_client import WireClient

HEADER_BYTES = 32
BODY_BYTES_FIELD = range(16, 20)  # of a header: with more of it the server waits for the rest
VALUES = {b"k0": b"a" * 100, b"k1": b"b" * 100}

REQUESTS = {
    "put": (wire.PUT, wire.put([b"k2"], 100)),
    "replace": (wire.PUT, wire.put([b"k0"], 100, replace=True)),
    "get": (wire.GET, wire.get([b"k0"], 100)),
    "exists": (wire.EXISTS, wire.key_list([b"k0"])),
    "erase": (wire.ERASE, wire.key_list([b"k0"])),
    "ping": (wire.PING, b""),
}


@pytest.fixture
def keeper(server: ServerProcess) -> Iterator[WireClient]:
    """Two values, which must be there and right afterwards."""
    with WireClient(server.address) as client:
        for key, value in VALUES.items():
            assert client.put_value(key, value)[0] in (wire.OK, wire.PRESENT)
        yield client
        for key, value in VALUES.items():
            assert client.get_value(key, 100) == (wire.OK, value)
        assert client.call(wire.EXISTS, wire.key_list([b"k2"])).outcomes == [wire.MISSING]


@pytest.mark.usefixtures("keeper")
@pytest.mark.parametrize("name", REQUESTS)
def test_no_request_with_a_changed_bit_is_heard(server: ServerProcess, name: str) -> None:
    opcode, body = REQUESTS[name]
    right = wire.frame(opcode, 2, body)
    for bit in range(8 * len(right)):
        at = bit // 8
        if at in BODY_BYTES_FIELD and not right[at] >> bit % 8 & 1:
            continue
        changed = bytearray(right)
        changed[at] ^= 1 << bit % 8
        with WireClient(server.address) as client:
            client.send(bytes(changed))
            assert client.is_closed_by_peer(), f"bit {bit % 8} of byte {at} was not seen"


def test_more_body_than_was_sent_is_waited_for_and_then_refused(
    server: ServerProcess, keeper: WireClient
) -> None:
    right = wire.frame(wire.ERASE, 2, wire.key_list([b"k0"]))
    changed = bytearray(right)
    changed[17] ^= 1  # 256 bytes more
    with WireClient(server.address) as client:
        client.send(bytes(changed))
        assert keeper.get_value(b"k0", 100) == (wire.OK, VALUES[b"k0"])
        client.send(bytes(256))
        assert client.is_closed_by_peer()
