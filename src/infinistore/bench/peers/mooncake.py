"""Mooncake Store over TCP: a master, a process whose memory is the pool, and a client without."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from infinistore.bench.peers.place import (
    Place,
    free_port,
    library_path,
    python_path,
    wait_for_port,
)
from infinistore.bench.process import ChildProcess
from infinistore.bench.rounds import each_timed
from infinistore.errors import SetupError

if TYPE_CHECKING:
    from infinistore.bench.child import Fleet
    from infinistore.bench.figures import Case
    from infinistore.bench.memory import Arena, Order

SETTINGS = (
    "Mooncake Store 0.3.13 over TCP with its connection pool on, batch_put_from and "
    "batch_get_into on registered buffers, the pool in another process"
)
START_TIMEOUT_S = 60.0
# Of the client's own memory, which calls on registered buffers do not use.
_BUFFER_BYTES = 64 << 20
# Beyond what two passes hold: it evicts at nine tenths.
_POOL_SHARE, _POOL_SLACK = 4, 256 << 20
_CHUNK = 4096  # keys of one removal


@contextlib.contextmanager
def start(place: Place) -> Iterator[Fleet]:
    """Master, pool and contender."""
    site = place.site("mooncake")
    environment = {
        "PYTHONPATH": python_path(site),
        "LD_LIBRARY_PATH": library_path(place.folder.absolute() / "lib"),
        "MC_TCP_BIND_ADDRESS": "127.0.0.1",
        "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1",
        "MC_TCP_ENABLE_CONNECTION_POOL": "1",
        "MC_STORE_CLIENT_METRIC": "0",
        "MC_LOG_LEVEL": "WARNING",
    }
    with contextlib.ExitStack() as end:
        port = free_port()
        master = ChildProcess(
            "mooncake_master",
            [
                str(site / "mooncake" / "mooncake_master"),
                *("-rpc_address", "127.0.0.1", "-rpc_port", str(port)),
                *("-metrics_host", "127.0.0.1", "-metrics_port", str(free_port())),
            ],
            place.log("mooncake master"),
            environment=environment,
        )
        end.callback(master.close)
        wait_for_port(master, port)
        at = f"127.0.0.1:{port}"
        pool_bytes = _POOL_SHARE * place.arena_bytes + _POOL_SLACK
        holder = ChildProcess(
            "the Mooncake pool",
            [sys.executable, "-m", "infinistore.bench.peers.mooncake", at, str(pool_bytes)],
            place.log("mooncake pool"),
            environment=environment,
        )
        end.callback(holder.close, 2.0)
        if holder.read_line(START_TIMEOUT_S) != "ready":
            raise SetupError(f"the Mooncake pool did not start:\n{holder.tail()}")
        fleet = place.fleet(
            "Mooncake TCP",
            "infinistore.bench.peers.mooncake:MooncakeContender",
            {"master": at},
            far_pids=(master.pid, holder.pid),
            environment=environment,
        )
        end.callback(fleet.close)
        yield fleet


class MooncakeContender:
    """A client that offers no memory of its own, so that every byte goes to the pool's process."""

    name = "mooncake"
    far_pids: tuple[int, ...] = ()

    def __init__(self, arena: Arena, *, master: str) -> None:
        self._arena = arena
        self._store = _set_up(master, 0)
        for memory in (arena.source, arena.target):
            if self._store.register_buffer(memory.ctypes.data, memory.nbytes):
                raise SetupError("a buffer could not be registered")
        self._passes = 0
        self._keys: list[str] = []

    def prepare(self, case: Case, order: Order) -> None:
        self._passes += 1
        self._keys = [f"{os.getpid()}-{self._passes}-{index}" for index in range(case.block_count)]
        self._writes = self._calls(case, self._put, self._arena.source, order.source)
        self._reads = self._calls(case, self._get, self._arena.target, order.target)

    def _calls(self, case: Case, verb: Any, memory: Any, offsets: Any) -> list[Any]:
        base = memory.ctypes.data
        addresses = [base + at for at in offsets.tolist()]
        step, count = case.batch_blocks, case.block_count
        return [
            partial(
                verb,
                self._keys[at : at + step],
                addresses[at : at + step],
                [case.block_bytes] * min(step, count - at),
            )
            for at in range(0, count, step)
        ]

    def _put(self, keys: list[str], addresses: list[int], sizes: list[int]) -> None:
        codes = self._store.batch_put_from(keys, addresses, sizes)
        if any(codes):
            raise SetupError(f"batch_put_from: {sum(map(bool, codes))} of {len(codes)} failed")

    def _get(self, keys: list[str], addresses: list[int], sizes: list[int]) -> None:
        found = self._store.batch_get_into(keys, addresses, sizes)
        if found != sizes:
            raise SetupError("batch_get_into returned other sizes than were asked for")

    def write(self) -> Sequence[float]:
        return each_timed(self._writes)

    def read(self) -> Sequence[float]:
        return each_timed(self._reads)

    def clean(self) -> None:
        """Erases what the pass wrote, past the lease that a read gives."""
        for at in range(0, len(self._keys), _CHUNK):
            self._store.batch_remove(self._keys[at : at + _CHUNK], True)
        self._keys = []

    def close(self) -> None:
        self._store.close()


def _set_up(master: str, segment_bytes: int) -> Any:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    status = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", segment_bytes, _BUFFER_BYTES, "tcp", "", master
    )
    if status:
        raise SetupError(f"Mooncake's setup failed: {status}")
    return store


def main(master: str, pool_bytes: int) -> None:
    """The process whose memory is the pool, until its stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the package prints
    store = _set_up(master, pool_bytes)
    time.sleep(1)  # it is offered to the master behind our back
    print("ready", file=answers, flush=True)
    sys.stdin.read()
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
