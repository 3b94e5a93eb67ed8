"""Single calls beside bare round trips: each repeated many times in turns with the others."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from infinistore import _native
from infinistore.bench.figures import Figure, percentile
from infinistore.bench.store import NAMESPACE, Transport
from infinistore.errors import Code, CorruptError, SetupError

if TYPE_CHECKING:
    from infinistore import Client

MESSAGE_BYTES = 64
BLOCK_BYTES = 4096
LOOKUP_KEYS = 1000
UNIX, TCP, EVENTFD = "unix round trip", "TCP round trip", "eventfd round trip"
ROUND_TRIPS: dict[str, str] = {"shm": UNIX, "tcp": TCP}
# How often in a round: a p99 of each round has at least ten values behind it.
TRIPS, GETS, LOOKUPS = 2000, 2000, 1000

Probe = Callable[[], Sequence[float]]


@dataclass(slots=True)
class Latencies:
    """Seconds of each call, by probe, a list a round."""

    rounds: dict[str, list[Sequence[float]]] = field(default_factory=dict)

    def figure(self, name: str, share: float = 0.5) -> Figure:
        """The percentile of each round, over the rounds."""
        return Figure.of(self.percentiles(name, share))

    def percentiles(self, name: str, share: float = 0.5) -> list[float]:
        """The percentile of each round, in their order."""
        return [percentile(taken, share) for taken in self.rounds[name]]


def measure_latencies(
    probes: dict[str, Probe], rounds: int, on_round: Callable[[], None] = lambda: None
) -> Latencies:
    """One round warms up; then every probe is called once a round, another one first each time."""
    found = Latencies()
    names = list(probes)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            taken = probes[name]()
            if number:
                found.rounds.setdefault(name, []).append(taken)
        on_round()
    return found


@contextlib.contextmanager
def round_trip_probes() -> Iterator[tuple[dict[str, Probe], list[int]]]:
    """The bare round trips, to another process each, and those processes."""
    with contextlib.ExitStack() as cleanup:
        pids: list[int] = []
        near, far = socket.socketpair()
        probes = {UNIX: _echoed(cleanup, pids, near, far, MESSAGE_BYTES)}
        near, far = _tcp_pair()
        probes[TCP] = _echoed(cleanup, pids, near, far, MESSAGE_BYTES)
        probes[EVENTFD] = _woken(cleanup, pids)
        yield probes, pids


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(None)
    return near, far


def _echoed(
    cleanup: contextlib.ExitStack,
    pids: list[int],
    near: socket.socket,
    far: socket.socket,
    size: int,
) -> Probe:
    process = _start_echo(far.fileno(), far.fileno(), size)
    pids.append(process.pid)
    far.close()
    cleanup.callback(_end, process)
    cleanup.callback(near.close)
    return lambda: _trips(near.fileno(), near.fileno(), size)


def _woken(cleanup: contextlib.ExitStack, pids: list[int]) -> Probe:
    there, back = (_native_eventfd() for _ in range(2))
    process = _start_echo(there, back, 8)
    pids.append(process.pid)
    cleanup.callback(os.close, there)
    cleanup.callback(os.close, back)
    cleanup.callback(_end, process)
    return lambda: _trips(there, back, 8)


def _native_eventfd() -> int:
    if not hasattr(os, "eventfd"):  # Python 3.10 has it on Linux
        raise SetupError("this machine has no eventfd")
    return os.eventfd(0, os.EFD_CLOEXEC)


def _start_echo(source: int, sink: int, size: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "infinistore.bench.far_end", "echo"]
    return subprocess.Popen(
        [*command, str(source), str(sink), str(size)],
        stdin=subprocess.DEVNULL,
        pass_fds=sorted({source, sink}),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _trips(sink: int, source: int, size: int) -> Sequence[float]:
    taken_ns = np.zeros(TRIPS, np.uint64)
    code = _native.bench_round_trips(sink, source, size, taken_ns)
    if code != Code.OK:
        raise SetupError(f"the bare round trips failed: {Code(code).name.lower()}")
    seconds: list[float] = (taken_ns / 1e9).tolist()
    return seconds


@contextlib.contextmanager
def store_probes(
    url: str, token: str | None, transport: Transport, seed: int
) -> Iterator[dict[str, Probe]]:
    """Single gets of 4 KiB, and lookups of 1,000 keys that are all there, by the waiting client."""
    import infinistore

    client = infinistore.connect(url, namespace=NAMESPACE, token=token, transport=transport)
    with contextlib.closing(client):
        calls = _Calls(client, f"{os.getpid()}-latency-{transport}-", seed)
        try:
            yield {
                f"{transport} get": calls.gets,
                f"{transport} exists": lambda: calls.lookups(client.exists, [True] * LOOKUP_KEYS),
                f"{transport} match_prefix": lambda: calls.lookups(
                    client.match_prefix, LOOKUP_KEYS
                ),
            }
        finally:
            client.delete(calls.keys)


class _Calls:
    """1,000 values of 4 KiB in the store, and the calls that ask for them."""

    def __init__(self, client: Client, stem: str, seed: int) -> None:
        self._client = client
        self.keys = [f"{stem}{index}".encode() for index in range(LOOKUP_KEYS)]
        random = np.random.default_rng(seed)
        self._values = random.integers(0, 256, (LOOKUP_KEYS, BLOCK_BYTES), dtype=np.uint8)
        self._target = np.zeros(BLOCK_BYTES, np.uint8)
        client.write_cache(
            self._values.reshape(-1),
            [(key, index * BLOCK_BYTES) for index, key in enumerate(self.keys)],
            BLOCK_BYTES,
        )
        client.sync()

    def gets(self) -> Sequence[float]:
        taken = []
        for number in range(GETS):
            index = number * 7 % LOOKUP_KEYS
            blocks = [(self.keys[index], 0)]
            start = time.perf_counter()
            self._client.read_cache(self._target, blocks, BLOCK_BYTES)
            self._client.sync()
            taken.append(time.perf_counter() - start)
            if (self._target != self._values[index]).any():
                raise CorruptError("a get of one block brought back other bytes")
        return taken

    def lookups(self, call: Callable[[Sequence[bytes]], object], wanted: object) -> Sequence[float]:
        taken = []
        for _ in range(LOOKUPS):
            start = time.perf_counter()
            found = call(self.keys)
            taken.append(time.perf_counter() - start)
            if found != wanted:
                raise CorruptError("a lookup did not find every key that is there")
        return taken
