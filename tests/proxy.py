"""A TCP proxy before a server, for tests: it holds back, delays, swallows, damages, cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from wire_client import DATA, HEADER

CHUNK_BYTES = 64 * 1024
Pump = Callable[[socket.socket, socket.socket], None]


class Frames:
    """Tells the payload of DATA from all else in the stream of a server's answers."""

    def __init__(self) -> None:
        self._header = b""
        self._body_left = self._payload_left = 0
        self._is_data = False

    def pieces(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """The chunk's bytes in order, and whether they are payload of DATA."""
        while chunk:
            if self._body_left or self._payload_left:
                is_payload = not self._body_left
                size = self._payload_left if is_payload else self._body_left
                piece, chunk = chunk[:size], chunk[size:]
                if is_payload:
                    self._payload_left -= len(piece)
                else:
                    self._body_left -= len(piece)
                yield piece, is_payload and self._is_data
                continue
            piece = chunk[: HEADER.size - len(self._header)]
            chunk = chunk[len(piece) :]
            self._header += piece
            if len(self._header) == HEADER.size:
                _, _, opcode, _, _, self._body_left, _, self._payload_left = HEADER.unpack(
                    self._header
                )
                self._header, self._is_data = b"", opcode == DATA
            yield piece, False


class Proxy:
    """Forwards to `target` ("127.0.0.1:port") until told otherwise; each fault replaces the last.

    Threads: one accepts, two serve each connection.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.held = threading.Event()  # hold_data() has let through what it was to let through
        self.flipped = threading.Event()  # flip_data() has changed its byte
        self._changed = threading.Condition()
        self._round = 0  # faults so far: what waits under an older one goes on
        self._delay_s = 0.0
        self._swallows = False
        self._hold_at: int | None = None  # bytes of payload until then; 0: it holds
        self._flip_at: int | None = None
        self._sockets: set[socket.socket] = set()
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """What connect() takes."""
        return f"infinistore://127.0.0.1:{self._listener.getsockname()[1]}"

    def forward(self) -> None:
        """No fault. What was held goes on; a stream of which bytes were swallowed is cut."""
        lost_bytes = self._swallows
        self._begin()
        if lost_bytes:
            self.cut()

    def hold_data(self, after_bytes: int) -> None:
        """Lets so many bytes of DATA's payload through, then no answer any more."""
        self._begin(hold_at=after_bytes)

    def flip_data(self, at_byte: int) -> None:
        """Changes one byte of DATA's payload: the one that comes after so many."""
        self._begin(flip_at=at_byte)

    def delay(self, seconds: float) -> None:
        """Answers come so much later, WELCOME included."""
        self._begin(delay_s=seconds)

    def swallow(self) -> None:
        """Takes everything, in both directions, passes nothing on, and closes nothing."""
        self._begin(swallows=True)

    def cut(self) -> None:
        """Closes all connections, whatever was held or delayed; new ones are taken."""
        with self._changed:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends it."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._begin()

    def _begin(
        self,
        *,
        delay_s: float = 0.0,
        swallows: bool = False,
        hold_at: int | None = None,
        flip_at: int | None = None,
    ) -> None:
        with self._changed:
            self._round += 1
            self._delay_s, self._swallows = delay_s, swallows
            self._hold_at, self._flip_at = hold_at, flip_at
            self.held.clear()
            self.flipped.clear()
            self._changed.notify_all()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._changed:
                self._sockets |= {client, server}
            for pump in (self._pump_questions, self._pump_answers):
                threading.Thread(target=self._serve, args=(pump, client, server)).start()

    def _serve(self, pump: Pump, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            pump(client, server)
        # The first of the two to end ends the other.
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._changed:
            is_last = client not in self._sockets
            self._sockets -= {client, server}
            self._changed.notify_all()
        if is_last:
            client.close()
            server.close()

    def _pump_questions(self, client: socket.socket, server: socket.socket) -> None:
        while chunk := client.recv(CHUNK_BYTES):
            if not self._swallows:
                server.sendall(chunk)

    def _pump_answers(self, client: socket.socket, server: socket.socket) -> None:
        frames = Frames()
        while chunk := server.recv(CHUNK_BYTES):
            if self._delay_s:
                self._wait(client, self._round, self._delay_s)
            for piece, is_payload in frames.pieces(chunk):
                self._pass_on(piece, is_payload, client)

    def _pass_on(self, piece: bytes, is_payload: bool, client: socket.socket) -> None:
        with self._changed:
            round_ = self._round
            if is_payload:
                piece = self._flip(piece)
            free = self._let_through(len(piece), is_payload)
        self._send(client, piece[:free])
        if free < len(piece):
            self.held.set()
            self._wait(client, round_, None)
            self._send(client, piece[free:])

    def _send(self, client: socket.socket, piece: bytes) -> None:
        if not self._swallows:
            client.sendall(piece)

    def _wait(self, client: socket.socket, round_: int, timeout_s: float | None) -> None:
        """Until the time has passed, another fault has begun, or the connection has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._round != round_ or client not in self._sockets, timeout_s
            )

    def _let_through(self, size: int, is_payload: bool) -> int:
        """How many of the next bytes need not be held."""
        left = self._hold_at
        if left is None or (left and not is_payload):
            return size
        self._hold_at = max(0, left - size)
        return min(left, size)

    def _flip(self, piece: bytes) -> bytes:
        at = self._flip_at
        if at is None or at >= len(piece):
            self._flip_at = None if at is None else at - len(piece)
            return piece
        self._flip_at = None
        self.flipped.set()
        return piece[:at] + bytes([piece[at] ^ 0x10]) + piece[at + 1 :]
