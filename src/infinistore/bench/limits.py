"""What the machine can do without a store: copies by one thread, and plain sockets."""

from __future__ import annotations

import socket
import subprocess
import sys

from infinistore import _native
from infinistore.bench.figures import Case
from infinistore.bench.memory import Arena, ByteArray, Order, addresses
from infinistore.errors import Code, SetupError

MEMCPY, STREAMING, SOCKET, SOCKETS = "memcpy", "stream copy", "1 socket", "2 sockets"
START_TIMEOUT_S = 20.0


class CopyLimit:
    """One thread's copy loop between the caller's memory and a memfd's, block by block."""

    far_pids: tuple[int, ...] = ()

    def __init__(self, arena: Arena, middle: ByteArray, *, nontemporal: bool) -> None:
        self.name = STREAMING if nontemporal else MEMCPY
        self._arena = arena
        self._middle = middle
        self._nontemporal = nontemporal

    def prepare(self, case: Case, order: Order) -> None:
        self._block_bytes = case.block_bytes
        self._source = addresses(self._arena.source, order.source)
        self._target = addresses(self._arena.target, order.target)
        self._between = addresses(self._middle, order.middle)

    def write(self) -> tuple[float, ...]:
        _native.bench_copy_blocks(self._nontemporal, self._between, self._source, self._block_bytes)
        return ()

    def read(self) -> tuple[float, ...]:
        _native.bench_copy_blocks(self._nontemporal, self._target, self._between, self._block_bytes)
        return ()

    def clean(self) -> None: ...

    def close(self) -> None: ...


class StreamLimit:
    """Blocks over plain TCP sockets to another process, a thread a socket at both ends."""

    def __init__(self, arena: Arena, streams: int) -> None:
        self.name = SOCKET if streams == 1 else f"{streams} sockets"
        self._arena = arena
        command = [sys.executable, "-m", "infinistore.bench.far_end", "streams"]
        self._process = subprocess.Popen(
            [*command, str(streams), str(arena.source.size)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._sockets: list[socket.socket] = []
        try:
            self._connect(streams)
        except BaseException:
            self.close()
            raise
        self.far_pids: tuple[int, ...] = (self._process.pid,)

    def _connect(self, streams: int) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            raise SetupError("the far end of the plain sockets did not start; its error is above")
        for _ in range(streams):
            stream = socket.create_connection(("127.0.0.1", int(line)), timeout=START_TIMEOUT_S)
            self._sockets.append(stream)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for stream in self._sockets:
            stream.recv(1)  # its memory is populated
            stream.settimeout(None)

    def prepare(self, case: Case, order: Order) -> None:
        self._block_bytes = case.block_bytes
        self._source = addresses(self._arena.source, order.source)
        self._target = addresses(self._arena.target, order.target)

    def write(self) -> tuple[float, ...]:
        return self._move(True)

    def read(self) -> tuple[float, ...]:
        return self._move(False)

    def _move(self, to_far: bool) -> tuple[float, ...]:
        descriptors = [stream.fileno() for stream in self._sockets]
        blocks = self._source if to_far else self._target
        code = _native.bench_move_blocks(descriptors, to_far, blocks, self._block_bytes)
        if code != Code.OK:
            raise SetupError(f"the plain sockets failed: {Code(code).name.lower()}")
        return ()

    def clean(self) -> None: ...

    def close(self) -> None:
        """Ends the far end, which leaves when its sockets close."""
        for stream in self._sockets:
            stream.close()
        try:
            self._process.wait(timeout=START_TIMEOUT_S if self._sockets else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
