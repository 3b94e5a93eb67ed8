"""One engine for many stores: asks, breaks what is behind the proxy, compares, and recovers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from test_vllm_pd import tokens, whole_blocks
from vllm_engine import EngineProcess

import infinistore
from proxy import Proxy
from server_process import ServerProcess
from waiting import until

Start = Callable[..., ServerProcess]

OUTPUT = 40  # tokens for each prompt: decode completes blocks, too
VALUE_BYTES = 64 * 1024
PAUSE_S = 1.0  # of the saves after failures, in place of 5 s to a minute


class Rig:
    """The engine, the proxy before its store, and what plain vLLM says."""

    def __init__(
        self, engine: EngineProcess, proxy: Proxy, prompts: list[list[int]], said: list[list[int]]
    ) -> None:
        self.engine = engine
        self.proxy = proxy
        self.prompts = prompts
        self._said = said
        self._before: dict[str, int] = {}

    def begin(self, start: Start, mode: str, transport: str, *flags: str) -> ServerProcess:
        """A new server that has all prompts, of which the engine itself has forgotten all."""
        server = self.serve(start, transport, *flags)
        self.engine.call("configure", load_mode=mode, save_pause_s=PAUSE_S)
        self.recover()
        assert set(self.engine.call("links")["transports"]) == {transport}
        return server

    def serve(self, start: Start, transport: str, *flags: str) -> ServerProcess:
        """Another server at the proxy's address."""
        apart = ["--unix-socket=none"] if transport == "tcp" else []
        server = start(*apart, *flags)
        self.proxy.target = server.address
        self.proxy.forward()
        self.proxy.cut()
        return server

    def recover(self) -> None:
        """Runs until all prompts are saved and loaded again: the engine needs no restart."""
        self.engine.call("configure", lookup_timeout_s=10)  # a busy machine is slow, too
        until(self._is_well, 60.0, "it does not save and load again")
        self._before = self.engine.counters()

    def _is_well(self) -> bool:
        assert self.engine.call("reset")
        self.engine.generate(self.prompts, 1)
        assert self.engine.call("reset")
        outputs = self.engine.generate(self.prompts, 1)
        assert self.engine.call("reset")
        return [o["cached"] for o in outputs] == [whole_blocks(p) for p in self.prompts]

    def send(self, chosen: list[int]) -> None:
        """Sends prompts, by their numbers."""
        prompts = [self.prompts[index] for index in chosen]
        self.engine.send("generate", prompts=prompts, max_tokens=OUTPUT)

    def take(self, chosen: list[int]) -> dict[str, int]:
        """Reads the answer of `send`, which must be plain vLLM's; what was counted since then."""
        outputs = tokens(self.engine.answer())
        assert outputs == [self._said[index][:OUTPUT] for index in chosen]
        now = self.engine.counters()
        counted = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return counted

    def run(self, chosen: list[int]) -> dict[str, int]:
        """Both."""
        self.send(chosen)
        return self.take(chosen)

    @property
    def all(self) -> list[int]:
        return list(range(len(self.prompts)))


def ask_and_begin(rig: Rig, chosen: list[int], fault: Callable[[], object]) -> None:
    """Sends prompts; the store answers their lookups, but not their loads any more."""
    rig.engine.call("hold_load")
    rig.send(chosen)
    assert rig.engine.answer() == "loading"
    fault()
    rig.engine.send("go")
    assert rig.engine.answer() == "asked"


def lease_all(server: ServerProcess, other: infinistore.Client) -> int:
    """Leases values until nothing else has room; how many."""
    page = np.zeros(VALUE_BYTES, np.uint8)
    count = 0

    def is_full() -> bool:
        nonlocal count
        while other.write_cache(page, [(f"k{count}", 0)], VALUE_BYTES).wait().all_ok:
            other.lookup([f"k{count}"], lease_s=200).wait()
            count += 1
        return count == server.pool_bytes // VALUE_BYTES

    until(is_full, 10.0, "the pool is not full of leased values")
    return count


def stage_all(server: ServerProcess, other: infinistore.Client) -> int:
    """Begins values until no more may be unfinished; how many."""
    half = VALUE_BYTES // 2
    page = np.zeros(half, np.uint8)
    count = 0
    while other.write_cache(page, [(f"k{count}", 0)], half, value_bytes=VALUE_BYTES).wait().all_ok:
        count += 1
    assert server.stats()["staged_values"] == count
    return count
