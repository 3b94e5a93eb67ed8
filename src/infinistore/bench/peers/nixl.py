"""NIXL: one-sided writes and reads by UCX between two processes; no store, so no keys."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from infinistore.bench.peers.place import Place, python_path
from infinistore.bench.process import ChildProcess
from infinistore.bench.rounds import each_timed
from infinistore.errors import SetupError

if TYPE_CHECKING:
    from infinistore.bench.child import Fleet
    from infinistore.bench.figures import Case
    from infinistore.bench.memory import Arena, Offsets, Order

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class UcxChoice:
    """What UCX may use. NIXL's error handling of peers rules posix out, so it is off with it."""

    about: str
    environment: dict[str, str]
    error_handling: str


TRANSPORTS = {
    "tcp": UcxChoice(
        "TCP on the loopback alone", {"UCX_TLS": "self,tcp", "UCX_NET_DEVICES": "lo"}, "peer"
    ),
    "posix": UcxChoice(
        "shared memory (posix) and cma, without error handling of peers",
        {"UCX_TLS": "self,posix,cma"},
        "none",
    ),
    "cma": UcxChoice(
        "cma with TCP beside it, as its error handling of peers wants",
        {"UCX_TLS": "self,posix,cma,tcp", "UCX_NET_DEVICES": "lo"},
        "peer",
    ),
}


@contextlib.contextmanager
def start(place: Place, name: str, choice: str) -> Iterator[Fleet]:
    """The far end's process, and the contender that writes to and reads from its memory."""
    site = place.site("nixl")
    ucx = TRANSPORTS[choice]
    environment = {
        **ucx.environment,
        "PYTHONPATH": python_path(site),
        "NIXL_LOG_LEVEL": "WARN",
    }
    with contextlib.ExitStack() as end:
        far = ChildProcess(
            f"{name}, far end",
            [
                *(sys.executable, "-m", "infinistore.bench.peers.nixl"),
                *(str(place.arena_bytes), ucx.error_handling),
            ],
            place.log(f"{name} far end"),
            environment=environment,
        )
        end.callback(far.close, 2.0)
        line = far.read_line(START_TIMEOUT_S)
        if not line.startswith("ready "):
            raise SetupError(f"{name}: the far end said {line[:200]!r}")
        _, address, metadata = line.split()
        fleet = place.fleet(
            name,
            "infinistore.bench.peers.nixl:NixlContender",
            {
                "far_address": int(address),
                "far_metadata": metadata,
                "error_handling": ucx.error_handling,
            },
            far_pids=(far.pid,),
            environment=environment,
            rests=True,  # a progress thread polls without end
        )
        end.callback(fleet.close)
        yield fleet


class NixlContender:
    """A transfer a batch, from its making until it is done; all at once unless the case waits.

    It polls for that itself, which is quicker than beside a progress thread that polls too.
    """

    name = "nixl"
    far_pids: tuple[int, ...] = ()

    def __init__(
        self, arena: Arena, *, far_address: int, far_metadata: str, error_handling: str
    ) -> None:
        self._arena = arena
        self._far_address = far_address
        self._agent = _agent(f"near-{os.getpid()}", error_handling, progress_thread=False)
        self._registered = [
            self._agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
            for memory in (arena.source, arena.target)
        ]
        self._far = self._agent.add_remote_agent(base64.b64decode(far_metadata))
        if isinstance(self._far, bytes):
            self._far = self._far.decode()
        self._lists: list[Any] = []

    def prepare(self, case: Case, order: Order) -> None:
        near, far = "NIXL_INIT_AGENT", self._far
        size = case.block_bytes
        source = self._prepared(near, self._arena.source.ctypes.data, order.source, size)
        target = self._prepared(near, self._arena.target.ctypes.data, order.target, size)
        middle = self._prepared(far, self._far_address, order.middle, size)
        step = case.batch_blocks
        batches = [
            _indexes(at, min(at + step, case.block_count))
            for at in range(0, case.block_count, step)
        ]
        self._waits = case.waits
        self._writes = [partial(self._begin, "WRITE", source, middle, batch) for batch in batches]
        self._reads = [partial(self._begin, "READ", target, middle, batch) for batch in batches]

    def _prepared(self, agent: str, address: int, offsets: Offsets, size: int) -> Any:
        import numpy as np

        rows = np.zeros((offsets.size, 3), np.uint64)
        rows[:, 0] = offsets + np.uint64(address)
        rows[:, 1] = size
        made = self._agent.prep_xfer_dlist(agent, rows, "DRAM")
        self._lists.append(made)
        return made

    def _begin(self, verb: str, near: Any, far: Any, indexes: Any) -> tuple[Any, str]:
        handle = self._agent.make_prepped_xfer(verb, near, indexes, far, indexes)
        return handle, self._agent.transfer(handle)

    def _end(self, handle: Any, state: str) -> None:
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
        self._agent.release_xfer_handle(handle)
        if state != "DONE":
            raise SetupError(f"a transfer ended as {state}")

    def write(self) -> Sequence[float]:
        return self._run(self._writes)

    def read(self) -> Sequence[float]:
        return self._run(self._reads)

    def _run(self, transfers: Sequence[Callable[[], tuple[Any, str]]]) -> Sequence[float]:
        if self._waits:
            return each_timed(partial(self._move, begin) for begin in transfers)
        for handle, state in [begin() for begin in transfers]:
            self._end(handle, state)
        return ()

    def _move(self, begin: Callable[[], tuple[Any, str]]) -> None:
        self._end(*begin())

    def clean(self) -> None:
        for made in self._lists:
            self._agent.release_dlist_handle(made)
        self._lists = []

    def close(self) -> None:
        self._agent.remove_remote_agent(self._far)
        for registered in self._registered:
            self._agent.deregister_memory(registered)


def _indexes(first: int, end: int) -> Any:
    import numpy as np

    return np.arange(first, end, dtype=np.int32)


def _agent(name: str, error_handling: str, *, progress_thread: bool) -> Any:
    from nixl_cu12 import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=[], enable_prog_thread=progress_thread))
    parameters = agent.get_plugin_params("UCX")
    parameters["ucx_error_handling_mode"] = error_handling
    agent.create_backend("UCX", parameters)
    return agent


def main(size: int, error_handling: str) -> None:
    """The far end: memory that others write to, until its stdin ends."""
    from infinistore.bench.memory import private_memory

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the package prints
    memory = private_memory(size)
    agent = _agent(f"far-{os.getpid()}", error_handling, progress_thread=True)
    registered = agent.register_memory([(memory.ctypes.data, size, 0, "")], "DRAM")
    metadata = base64.b64encode(agent.get_agent_metadata()).decode()
    print("ready", memory.ctypes.data, metadata, file=answers, flush=True)
    sys.stdin.read()
    agent.deregister_memory(registered)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
