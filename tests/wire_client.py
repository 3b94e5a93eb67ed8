"""The wire protocol by hand, for tests that send what no client of ours would."""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import dataclass
from types import TracebackType

MAGIC = 0x31534649
HEADER = struct.Struct("<IBBHQIIQ")
TIMEOUT_S = 10.0
SUM_STEP = 0x9E3779B97F4A7C15
U64_MAX = (1 << 64) - 1

HELLO, WELCOME, PUT, GRANT, FILL, RESULT, GET, DATA, DONE, MATCH, MATCHED = range(1, 12)
EXISTS, ERASE, LEASE, ABORT, STATS, COUNTERS, GOODBYE, ERROR, PING, SUSPECT = range(12, 22)

OK, PRESENT, MISSING, SIZE_MISMATCH, TOO_LARGE, OUT_OF_MEMORY, OVERLOADED, INVALID = range(8)
UNAUTHORIZED, PROTOCOL, VERSION = 8, 9, 10
ABORTED, LEASE_EXPIRED = 15, 16

CANCELLED = 1  # a flag of FILL
UP_TO = 1  # a flag of GET


def header(
    opcode: int, request_id: int, body: bytes, *, flags: int = 0, payload_bytes: int = 0
) -> bytes:
    """With the sum of itself and its body (section 1)."""
    fields = (MAGIC, 1, opcode, flags, request_id, len(body))
    total = checksum(HEADER.pack(*fields, 0, payload_bytes) + body)
    return HEADER.pack(*fields, (total * SUM_STEP & U64_MAX) >> 32, payload_bytes)


def frame(
    opcode: int, request_id: int, body: bytes = b"", payload: bytes = b"", flags: int = 0
) -> bytes:
    return (
        header(opcode, request_id, body, flags=flags, payload_bytes=len(payload)) + body + payload
    )


def text16(text: bytes) -> bytes:
    return struct.pack("<H", len(text)) + text


def key_list(keys: list[bytes]) -> bytes:
    return struct.pack("<I", len(keys)) + bytes(map(len, keys)) + b"".join(keys)


def uniform(value_bytes: int, offset: int, size: int) -> bytes:
    return struct.pack("<BQQQ", 0, value_bytes, offset, size)


def hello(
    space: bytes = b"",
    token: bytes = b"",
    nonce: bytes = bytes(16),
    versions: tuple[int, int] = (1, 1),
) -> bytes:
    fixed = struct.pack("<HHIQ", *versions, 0, 7) + bytes(16) + nonce
    return fixed + text16(token) + text16(space) + text16(b"wire test")


def put(
    keys: list[bytes],
    value_bytes: int,
    offset: int = 0,
    size: int | None = None,
    replace: bool = False,
) -> bytes:
    size = value_bytes if size is None else size
    return bytes([replace, 0, 0, 0]) + key_list(keys) + uniform(value_bytes, offset, size)


def get(
    keys: list[bytes],
    size: int,
    offset: int = 0,
    value_bytes: int = 0,
    wait_ms: int = 0,
    lease: int = 0,
) -> bytes:
    return struct.pack("<IQ", wait_ms, lease) + key_list(keys) + uniform(value_bytes, offset, size)


def checksum(data: bytes) -> int:
    """Section 6, for a range that begins at a value's start."""
    total, mask = 0, U64_MAX
    padded = data + bytes(-len(data) % 8)
    for index, (word,) in enumerate(struct.iter_unpack("<Q", padded)):
        mixed = word ^ ((index * 8 + 1) * SUM_STEP & mask)
        rotated = (word << 32 | word >> 32) & mask
        total = (total + (mixed & 0xFFFFFFFF) * (mixed >> 32) + rotated) & mask
    return total


@dataclass(frozen=True)
class Frame:
    opcode: int
    request_id: int
    body: bytes
    payload: bytes = b""

    @property
    def outcomes(self) -> list[int]:
        """Of GRANT, RESULT and DATA."""
        (count,) = struct.unpack_from("<I", self.body)
        return list(self.body[4 : 4 + count])

    @property
    def error(self) -> tuple[int, str]:
        code, size = struct.unpack_from("<HH", self.body)
        return code, self.body[4 : 4 + size].decode()


class WireClient:
    """One connection that sends any bytes; welcomed unless told otherwise."""

    def __init__(self, address: str, *, greet: bool = True, **greeting: object) -> None:
        self._ids = 0
        self.fds: list[int] = []
        if address.startswith("/"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(address)
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)
        self.welcome = self.call(HELLO, hello(**greeting)) if greet else None  # type: ignore[arg-type]

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    @property
    def nonce(self) -> bytes:
        assert self.welcome is not None
        return self.welcome.body[32:48]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, opcode: int, body: bytes = b"", payload: bytes = b"", flags: int = 0) -> int:
        self._ids += 1
        self.send(frame(opcode, self._ids, body, payload, flags))
        return self._ids

    def call(self, opcode: int, body: bytes = b"", flags: int = 0) -> Frame:
        request_id = self.request(opcode, body, flags=flags)
        answer = self.receive()
        assert answer.request_id == request_id or answer.opcode == ERROR
        return answer

    def receive(self) -> Frame:
        """The next frame. Raises `ConnectionError` at the connection's end."""
        fields = HEADER.unpack(self._read(HEADER.size))
        magic, version, opcode, _, request_id, body_bytes, _, payload_bytes = fields
        assert (magic, version) == (MAGIC, 1)
        return Frame(opcode, request_id, self._read(body_bytes), self._read(payload_bytes))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if self.socket.family == socket.AF_UNIX:
                chunk, ancillary, _, _ = self.socket.recvmsg(size - len(data), 4096)
                for _, _, packed in ancillary:
                    fds = array.array("i")
                    fds.frombytes(packed)
                    self.fds.extend(fds)
            else:
                chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the server closed the connection")
            data += chunk
        return data

    def is_closed_by_peer(self) -> bool:
        """Waits for the end; False if frames that are no ERROR come, or nothing happens."""
        try:
            while True:
                if self.receive().opcode != ERROR:
                    return False
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def put_value(self, key: bytes, value: bytes, **options: bool) -> list[int]:
        """A whole value over TCP; the outcomes of RESULT."""
        request_id = self.request(PUT, put([key], len(value), **options))
        granted = self.receive()
        assert (granted.opcode, granted.request_id) == (GRANT, request_id)
        if OK in granted.outcomes:
            tail = struct.pack("<Q", checksum(value))
            self.send(frame(FILL, request_id, struct.pack("<I", 1), value + tail))
        result = self.receive()
        assert (result.opcode, result.request_id) == (RESULT, request_id)
        return result.outcomes

    def get_value(self, key: bytes, size: int, **options: int) -> tuple[int, bytes]:
        """A range over TCP: its outcome and bytes."""
        data = self.call(GET, get([key], size, **options))
        assert data.opcode == DATA
        return data.outcomes[0], data.payload
