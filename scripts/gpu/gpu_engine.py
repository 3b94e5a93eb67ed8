"""One vLLM in a process of its own, asked by lines of JSON; this file is both ends.

`Engine` is the asking end. The other is this file run as a program: engine core, worker and model
share its process, so that a time is the engine's alone, and its KV cache can be looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

START_S, ANSWER_S = 300.0, 240.0
_SETTLE_S = 0.1  # twice what 2 GB take at 40 GB/s
WEIGHT_STD = 0.08  # less gives nearly constant output
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}


class EngineError(RuntimeError):
    """An engine did not start, ended, or did not answer."""


class Engine:
    """One vLLM; starting returns at once, `ready` waits."""

    def __init__(
        self, name: str, settings: dict[str, Any], environment: dict[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        self._facts: Any = None
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=os.environ | ENVIRONMENT | environment,
            )

    def ready(self) -> dict[str, Any]:
        """Waits until the model is loaded; returns what the engine is."""
        if self._facts is None:
            self._facts = self._read(START_S)
        return self._facts

    def call(self, verb: str, **arguments: Any) -> Any:
        """Sends a command and reads its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        return self._read(ANSWER_S)

    def _read(self, timeout_s: float) -> Any:
        pipe = self._process.stdout
        assert pipe is not None
        # A line is written at once, and none is read ahead: nothing waits in our buffer.
        if not select.select([pipe], [], [], timeout_s)[0]:
            raise EngineError(
                f"{self.name} has not answered for {timeout_s:.0f} s:\n{self._tail()}"
            )
        line = pipe.readline()
        if not line:
            status = self._process.wait()
            raise EngineError(f"{self.name} ended with {status}:\n{self._tail()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}\n{self._tail()}")
        return answer

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """Ends it at once. Harmless when repeated."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def prompt_of(seed: int, tokens: int, vocabulary: int) -> list[int]:
    """Token ids that every engine makes alike; no two seeds share a first block."""
    draw = random.Random(f"{seed}/{tokens}")
    return [draw.randrange(3, vocabulary) for _ in range(tokens)]


class Program:
    """The other end: carries out one command after the other."""

    def __init__(self, answers: Any, settings: dict[str, Any]) -> None:
        self._answers = answers
        self._caches: dict[str, Any] = {}
        self._noted: dict[str, dict[str, int]] = {"saved": {}, "loaded": {}}
        transfer = settings["llm"].get("kv_transfer_config") or {}
        self._is_ours = transfer.get("kv_connector") == "InfiniStoreConnector"
        self._is_offloading = bool(transfer) and not self._is_ours
        if self._is_ours:
            self._keep_caches()
        from vllm import LLM

        self._llm = LLM(**settings["llm"])
        self._core = self._llm.llm_engine.engine_core.engine_core
        self._config = self._llm.llm_engine.vllm_config
        self._vocabulary = self._config.model_config.get_vocab_size()
        if settings["is_seeded"]:
            self._llm.apply_model(reseed)
        if self._is_ours:
            self._note_blocks()

    def run(self) -> None:
        """Serves until the pipe ends."""
        self.say(self.facts())
        while line := sys.stdin.readline():
            command = json.loads(line)
            self.say(getattr(self, command.pop("verb"))(**command))

    def say(self, answer: object) -> None:
        """Answers."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def facts(self) -> dict[str, Any]:
        """What this engine is."""
        import vllm
        from vllm.platforms import current_platform

        facts: dict[str, Any] = {
            "vllm": vllm.__version__,
            "device": current_platform.get_device_name(),
            "runner": 2 if self._is_second_runner() else 1,
            "async_scheduling": bool(self._config.scheduler_config.async_scheduling),
            "blocks": self._config.cache_config.num_gpu_blocks,
            "vocabulary": self._vocabulary,
        }
        if self._is_ours:
            name, cache = next(iter(self._caches.items()))
            client = self._worker_connector.link.client
            facts |= {
                "namespace": self._worker_connector.link.namespace,
                "transport": client.transport if client is not None else None,
                "value_bytes": self._worker_connector.worker.value_bytes,
                "layer": f"{name} {list(cache.shape)} {list(cache.stride())} {cache.device}",
            }
        return facts

    def _is_second_runner(self) -> bool:
        worker = self._core.model_executor.driver_worker
        runner = getattr(worker, "worker", worker).model_runner
        return type(runner).__module__.startswith("vllm.v1.worker.gpu.")

    def generate(self, seed: int, tokens: int, max_tokens: int) -> dict[str, Any]:
        """A greedy continuation of a prompt, and how long it took."""
        from vllm import SamplingParams

        prompt: Any = {"prompt_token_ids": prompt_of(seed, tokens, self._vocabulary)}
        sampling = SamplingParams(
            max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False
        )
        for blocks in self._noted.values():
            blocks.clear()
        began_s = time.perf_counter()
        (output,) = self._llm.generate([prompt], [sampling], use_tqdm=False)
        taken_ms = 1e3 * (time.perf_counter() - began_s)
        return {
            "ms": taken_ms,
            "tokens": list(output.outputs[0].token_ids),
            "cached": output.num_cached_tokens or 0,
        }

    def forget(self) -> bool:
        """Forgets the engine's own prefix cache, once what goes on behind an answer has ended."""
        for _ in range(20):
            if self._is_offloading:
                # It moves bytes in the steps that follow; a step needs a request.
                self.generate(seed=-1, tokens=8, max_tokens=2)
                time.sleep(_SETTLE_S)
                self.generate(seed=-1, tokens=8, max_tokens=2)
            if self._llm.reset_prefix_cache():
                return True
            self.generate(seed=-1, tokens=8, max_tokens=2)
        return False

    def counters(self) -> dict[str, int]:
        """Our connector's counters of both sides, since the start."""
        sides = (self._core.scheduler.connector.scheduler, self._worker_connector.worker)
        totals = [side.counters.totals for side in sides]
        return {name: sum(total[name] for total in totals) for name in totals[0]}

    def blocks(self) -> dict[str, dict[str, str]]:
        """The digests of the blocks in the KV cache that the last prompt saved, and loaded."""
        count = self._worker_connector._block_count
        return {
            way: {key: digest(self._caches, block, count) for key, block in blocks.items()}
            for way, blocks in self._noted.items()
        }

    def timeline(self, seed: int, tokens: int) -> dict[str, Any]:
        """A request with its connector's calls: first began and last ended at, calls, their sum."""
        taken: dict[str, list[float]] = {}
        began_s = time.perf_counter()

        def timed(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                from_ms = 1e3 * (time.perf_counter() - began_s)
                try:
                    return inner(*arguments, **more)
                finally:
                    to_ms = 1e3 * (time.perf_counter() - began_s)
                    row = taken.setdefault(name, [from_ms, to_ms, 0, 0.0])
                    row[1:] = [to_ms, row[2] + 1, row[3] + to_ms - from_ms]

            return call

        with self._wrapped(timed):
            began_s = time.perf_counter()
            answer = self.generate(seed, tokens, 1)
        return {
            "ms": answer["ms"],
            "cached": answer["cached"],
            "calls": {name: [round(x, 2) for x in row] for name, row in taken.items()},
        }

    def waits(self, seed: int, tokens: int) -> dict[str, Any]:
        """CUDA's calls that wait for the GPU, of all threads, while a request runs."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            answer = self.generate(seed, tokens, 1)
        calls: dict[str, list[float]] = {}
        for event in seen.events() or ():
            if "Synchronize" in event.name:
                row = calls.setdefault(event.name, [0, 0.0])
                row[0] += 1
                row[1] += round(event.time_range.elapsed_us() / 1e3, 2)
        return {"cached": answer["cached"], "calls": calls}

    @contextlib.contextmanager
    def _wrapped(self, timed: Callable[[str, Any], Any]) -> Iterator[None]:
        owners = [
            (self._core.scheduler, ("add_request", "schedule", "update_from_output")),
            (self._core.model_executor, ("execute_model", "sample_tokens")),
            (self._core.scheduler.connector, ("on_new_request", "get_num_new_matched_tokens")),
            (self._core.scheduler.connector, ("build_connector_meta",)),
            (self._worker_connector, ("start_load_kv", "wait_for_layer_load", "save_kv_layer")),
            (self._worker_connector, ("wait_for_save", "get_finished")),
        ]
        wrapped = [(owner, name) for owner, names in owners for name in names]
        for owner, name in wrapped:
            setattr(owner, name, timed(name, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name in wrapped:
                delattr(owner, name)

    @property
    def _worker_connector(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    def _keep_caches(self) -> None:
        from infinistore.connectors.vllm.connector import InfiniStoreConnector

        inner = InfiniStoreConnector.register_kv_caches

        def register(connector: Any, caches: dict[str, Any]) -> None:
            self._caches = caches
            inner(connector, caches)

        InfiniStoreConnector.register_kv_caches = register  # type: ignore[method-assign]

    def _note_blocks(self) -> None:
        worker = self._worker_connector.worker
        inner = worker.begin_step

        def begin(plan: Any) -> None:
            for way, moved in (("saved", plan.saves), ("loaded", plan.loads)):
                pairs = [
                    pair for each in moved for pair in zip(each.names, each.block_ids, strict=True)
                ]
                self._noted[way].update(
                    {worker._groups[0].keys([block])[0].decode(): at for block, at in pairs}
                )
            inner(plan)

        worker.begin_step = begin


def reseed(model: Any) -> int:
    """Gives all weights of a model random values, the same in every process."""
    import torch

    parameters = sorted(model.named_parameters())
    generator = torch.Generator(device=parameters[0][1].device).manual_seed(0)
    for _, parameter in parameters:
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, WEIGHT_STD, generator=generator)
        else:
            parameter.data.fill_(1.0)  # norms
    return len(parameters)


def digest(caches: dict[str, Any], block: int, count: int) -> str:
    """Of a block's bytes in all layers, each in the order in which they lie in memory."""
    import torch

    from infinistore.connectors.vllm.layout import in_order

    total = hashlib.sha256()
    for name in in_order(list(caches)):
        cache = caches[name]
        for plane in [cache] if cache.shape[0] % count == 0 else list(cache):
            pieces = plane.shape[0] // count
            part = plane[block * pieces : (block + 1) * pieces]
            order = sorted(range(part.dim()), key=lambda axis: -part.stride(axis))
            raw = part.permute(order).contiguous().view(torch.uint8)
            total.update(raw.cpu().numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    """Keeps the answers' pipe for answers: whatever else prints goes to the log."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        program = Program(answers, json.loads(sys.argv[1]))
        program.run()
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}) + "\n")
        answers.flush()
        raise


if __name__ == "__main__":
    main()
