"""One vLLM in a process of its own for `connector_cpu.py`: asks it prompts, counts its CPU time.

Engine core, worker and model share this process, so that its CPU clock is the engine's: every
thread, user and system, in nanoseconds, with no HTTP server in it. For a request that is not
`is_connected` the connector is taken out of vLLM: every code path is that of a vLLM without one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from multiprocessing.connection import Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What is still under way when the answer is there (a thread that ends its work) counts, too.
_SETTLE_S = 0.02
_WORKER_HOOKS = (
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_finished",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "build_connector_worker_meta",
    "clear_connector_metadata",
)
_SCHEDULER_HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "get_kv_connector_stats",
)


def thread_cpu_ns() -> dict[int, tuple[str, int]]:
    """Nanoseconds on a CPU of each thread of this process, with its name."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            spent = int((task / "schedstat").read_text().split()[0])
            found[int(task.name)] = ((task / "comm").read_text().strip(), spent)
    return found


class Clocks:
    """When a request's stages began, and the CPU time that is spent for the connector's sake."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.begin()

    def begin(self) -> None:
        """Starts anew, for the next request."""
        self.admitted_s = self.decided_s = self.scheduled_s = 0.0
        self.hooks: dict[str, tuple[int, float]] = {}  # calls and CPU seconds
        self.hooks_s = 0.0
        self.idle_steps_s = 0.0
        self._idle_since: tuple[float, float] | None = None

    def admitted(self) -> None:
        """The engine has the request."""
        self.admitted_s = time.perf_counter()

    def scheduled(self, is_computing: bool, began_s: float, began_cpu_s: float) -> None:
        """A step was decided on. Until the first that computes, steps wait for the store alone."""
        if self.scheduled_s:
            return
        if self._idle_since is not None:
            cpu_s, hooks_s = self._idle_since
            self.idle_steps_s += (began_cpu_s - cpu_s) - (self.hooks_s - hooks_s)
        self._idle_since = (began_cpu_s, self.hooks_s)
        if is_computing:
            self.scheduled_s = began_s

    def counted(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        """`inner`, its CPU time noted: two looks at a clock, some microseconds a call."""

        def count(*arguments: Any, **more: Any) -> Any:
            began_s = time.thread_time()
            try:
                return inner(*arguments, **more)
            finally:
                spent_s = time.thread_time() - began_s
                calls, before_s = self.hooks.get(name, (0, 0.0))
                self.hooks[name] = (calls + 1, before_s + spent_s)
                self.hooks_s += spent_s
                if name == "update_state_after_alloc" and not self.decided_s:
                    self.decided_s = time.perf_counter()  # the store's word was there

        return count


class Engine:
    """The engine and its clocks; `ask` and `fill` are what the other end may call."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Loads the model."""
        from vllm import LLM
        from vllm.distributed.kv_transfer import kv_transfer_state

        self._llm = LLM(**settings)
        self._core = self._llm.llm_engine.engine_core.engine_core
        self._scheduler = self._core.scheduler
        self._state = kv_transfer_state
        self._connectors = (self._scheduler.connector, kv_transfer_state._KV_CONNECTOR_AGENT)
        self._clocks = Clocks()
        self._watch()

    def _watch(self) -> None:
        clocks, add, schedule = self._clocks, self._core.add_request, self._scheduler.schedule

        def noted_add(*arguments: Any, **more: Any) -> Any:
            clocks.admitted()
            return add(*arguments, **more)

        def noted_schedule(*arguments: Any, **more: Any) -> Any:
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            output = schedule(*arguments, **more)
            clocks.scheduled(output.total_num_scheduled_tokens > 0, began_s, began_cpu_s)
            return output

        self._core.add_request, self._scheduler.schedule = noted_add, noted_schedule
        for connector, names in zip(
            self._connectors, (_SCHEDULER_HOOKS, _WORKER_HOOKS), strict=True
        ):
            for name in names if connector is not None else ():
                setattr(connector, name, clocks.counted(name, getattr(connector, name)))

    @contextlib.contextmanager
    def _taken_out(self) -> Iterator[None]:
        self._scheduler.connector = self._state._KV_CONNECTOR_AGENT = None
        try:
            yield
        finally:
            self._scheduler.connector, self._state._KV_CONNECTOR_AGENT = self._connectors

    def ask(self, prompt: list[int], is_connected: bool, is_kept: bool) -> dict[str, Any]:
        """One token for `prompt`; with `is_kept` what the engine has in its own cache is used."""
        from vllm import SamplingParams

        if not is_kept:
            self._llm.reset_prefix_cache()
        parameters = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        clocks = self._clocks
        with contextlib.nullcontext() if is_connected else self._taken_out():
            clocks.begin()
            time.sleep(_SETTLE_S)
            threads = thread_cpu_ns()
            began_s, began_ns = time.perf_counter(), time.process_time_ns()
            (output,) = self._llm.generate(
                [{"prompt_token_ids": prompt}], parameters, use_tqdm=False
            )
            ended_s = time.perf_counter()
            time.sleep(_SETTLE_S)
            cpu_s = (time.process_time_ns() - began_ns) / 1e9
        ours_ns = sum(
            spent - threads.get(task, ("", 0))[1]
            for task, (name, spent) in thread_cpu_ns().items()
            if name.startswith("infinistore")
        )
        return {
            "cpu_s": cpu_s,
            "hooks_s": clocks.hooks_s,
            "idle_steps_s": clocks.idle_steps_s,
            "client_s": ours_ns / 1e9,
            "ttft_s": ended_s - began_s,
            "lookup_s": max(clocks.decided_s - clocks.admitted_s, 0.0),
            "load_s": clocks.scheduled_s - max(clocks.decided_s, clocks.admitted_s),
            "cached": output.num_cached_tokens,
            "hooks": clocks.hooks,
        }

    def fill(self, pool_bytes: int) -> None:
        """Writes the pool full, and so maps all of its pages into this process, once for all.

        An engine does so in its first minutes, at a microsecond or two a page. What is measured is
        what a prefill costs from there on, evictions in the server included.
        """
        import numpy as np

        assert self._connectors[1] is not None, "a plain engine has no store to fill"
        client, value_bytes = self._connectors[1].link.client, 1 << 20
        page = np.random.default_rng(0).integers(0, 255, value_bytes, dtype=np.uint8)
        for number in range(pool_bytes // value_bytes + 1):
            client.write_cache(page, [(f"filler {number}", 0)], value_bytes).wait()


def main() -> None:
    """Serves the other end until it hangs up: one JSON text a call and an answer."""
    where, settings = sys.argv[1:]
    engine = Engine(json.loads(settings))
    with contextlib.suppress(EOFError), Listener(where, "AF_UNIX") as door, door.accept() as line:
        while True:
            call = json.loads(line.recv_bytes())
            answer = getattr(engine, call.pop("verb"))(**call)
            line.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
