"""A vLLM engine in a process of its own, driven by lines of JSON; this file is both ends.

`EngineProcess` is the test's end. The other is this file run as a program: vLLM with its engine in
the process itself, so that a test can hold the model between two layers, and look inside.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from infinistore.connectors.vllm import WorkerExtension

START_TIMEOUT_S = 240.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
}


class Spawned:
    """This file, run as a program: it imports vLLM, then waits for its settings."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )

    def end(self) -> None:
        """Ends it at once. Harmless when repeated."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Spare:
    """The next engine's process. Importing vLLM takes most of a start, and one CPU."""

    def __init__(self) -> None:
        self._next: Spawned | None = None
        atexit.register(self.end)

    def take(self, environment: dict[str, str]) -> Spawned:
        """A process with this environment; the next one begins to import meanwhile."""
        if self._next and self._next.environment != environment:
            self.end()
        taken = self._next or Spawned(environment)
        self._next = Spawned(environment)
        return taken

    def end(self) -> None:
        if self._next:
            self._next.end()
            self._next = None


SPARE = Spare()


class EngineProcess:
    """One vLLM; `url` None: a plain one."""

    def __init__(
        self,
        model: Path,
        url: str | None = None,
        *,
        extra: dict[str, Any] | None = None,
        role: str = "kv_both",
        environment: dict[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        settings: dict[str, Any] = {
            "model": str(model),
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "seed": 0,
            "disable_log_stats": False,
        }
        if url is not None:
            settings["kv_transfer_config"] = {
                "kv_connector": "InfiniStoreConnector",
                "kv_connector_module_path": "infinistore.connectors.vllm",
                "kv_role": role,
                "kv_load_failure_policy": "recompute",
                # A busy machine is slow, too, and the tests count every hit.
                "kv_connector_extra_config": {"url": url, "lookup_timeout_s": 10, **(extra or {})},
            }
        settings.update(arguments)
        inherited = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        self._spawned = SPARE.take(inherited | ENVIRONMENT | (environment or {}))
        self.process = self._spawned.process
        try:
            with contextlib.suppress(BrokenPipeError):  # it could not import: read why
                self._write(settings)
            self._read()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def log(self) -> str:
        """What it wrote to stderr, vLLM's log included."""
        self._spawned.log.seek(0)
        return self._spawned.log.read().decode(errors="replace")

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            raise AssertionError(f"vLLM ended with {status}:\n{self.log()[-6000:]}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{answer['error']}\n{self.log()[-6000:]}")
        return answer

    def send(self, verb: str, **arguments: Any) -> None:
        """Sends a command without waiting for its answer."""
        self._write({"verb": verb, **arguments})

    def _write(self, command: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def call(self, verb: str, **arguments: Any) -> Any:
        """Sends a command and reads its answer."""
        self.send(verb, **arguments)
        return self._read()

    def answer(self) -> Any:
        """Reads the answer of a command that was sent, or what a held model says."""
        return self._read()

    def generate(self, prompts: list[list[int]], max_tokens: int, **more: Any) -> list[Any]:
        """Greedy outputs: for each prompt `tokens`, `cached` (tokens not computed), `params`."""
        outputs = self.call("generate", prompts=prompts, max_tokens=max_tokens, **more)
        assert isinstance(outputs, list)
        return outputs

    def counters(self) -> dict[str, int]:
        """The connector's counters of both sides, added up."""
        counters = self.call("counters")
        assert isinstance(counters, dict)
        return counters

    def kill(self) -> None:
        """Ends it at once. Harmless when repeated."""
        self._spawned.end()


class ChangingWorker(WorkerExtension):
    """For `worker_extension_cls`: a worker whose weights a test can change in place."""

    def scale_norms(self, factor: float) -> int:
        """Scales the norms before attention; the number of layers."""
        import torch

        changed = 0
        with torch.no_grad():
            for name, parameter in self.model_runner.model.named_parameters():
                if "input_layernorm" in name:  # others are packed for the CPU when they are loaded
                    parameter.mul_(factor)
                    changed += 1
        return changed


class Program:
    """The other end: carries out one command after the other."""

    def __init__(self, answers: Any, settings: dict[str, Any]) -> None:
        from vllm import LLM

        self._answers = answers
        self._llm = LLM(**settings)
        self._durations: dict[str, list[float]] = {}

    def say(self, answer: object) -> None:
        """Answers."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def run(self) -> None:
        """Serves until the pipe ends."""
        self.say("ready")
        while line := sys.stdin.readline():
            command = json.loads(line)
            verb = getattr(self, command.pop("verb"))
            self.say(verb(**command))

    def generate(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        salt: str | None = None,
        params: list[Any] | None = None,
        adapter: str | None = None,
    ) -> list[dict[str, Any]]:
        """Greedy continuations of prompts of token ids; `adapter` is the directory of a LoRA's."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        sampling = [
            SamplingParams(
                max_tokens=max_tokens,
                temperature=0,
                ignore_eos=True,
                extra_args={"kv_transfer_params": params[index]} if params else None,
            )
            for index in range(len(prompts))
        ]
        inputs: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
        for each in inputs:
            if salt is not None:
                each["cache_salt"] = salt
        lora = (
            LoRARequest(Path(adapter).name, 1 + crc32(adapter.encode()), adapter)
            if adapter
            else None
        )
        outputs = self._llm.generate(inputs, sampling, use_tqdm=False, lora_request=lora)
        return [
            {
                "tokens": list(output.outputs[0].token_ids),
                "cached": output.num_cached_tokens,
                "params": output.kv_transfer_params,
                "reason": output.outputs[0].finish_reason,
            }
            for output in outputs
        ]

    def rpc(self, method: str) -> list[Any]:
        """What each worker answers to a method of its extension."""
        return list(self._llm.collective_rpc(method))

    def reset(self) -> bool:
        """Forgets the engine's own prefix cache."""
        return bool(self._llm.reset_prefix_cache())

    def change_weights(self, factor: float, epoch: str | None = None) -> str:
        """Other weights in the live model, and what docs/model-updates.md says to do about it.

        Without a name the reset of the caches is the only signal.
        """
        if epoch is not None:
            assert all(self._llm.collective_rpc("set_weights_epoch", args=(None,)))
        assert all(self._llm.collective_rpc("scale_norms", args=(factor,)))
        self._llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        if epoch is not None:
            self._llm.collective_rpc("set_weights_epoch", args=(epoch,))
        return self.namespace()

    def namespace(self) -> str:
        """Where the scheduler's side looks for blocks; "" without a connector."""
        connector = self._scheduler.connector
        return "" if connector is None else str(connector.link.namespace)

    def generate_across_change(
        self, prompts: list[list[int]], max_tokens: int, steps: int, factor: float
    ) -> list[dict[str, Any]]:
        """Greedy continuations, the weights changed while they run, after so many steps.

        For each prompt `tokens`, and how many of them were there `before` the change.
        """
        before: dict[int, int] = {}

        def change(step: int, said: dict[int, list[int]]) -> None:
            if step == steps:
                self.change_weights(factor)
                before.update({index: len(tokens) for index, tokens in said.items()})

        said = self._step_through(prompts, max_tokens, change)
        return [
            {"tokens": said[index], "before": before.get(index, 0)} for index in range(len(prompts))
        ]

    def generate_with_aborts(
        self, prompts: list[list[int]], max_tokens: int, aborts: list[int | None]
    ) -> list[list[int]]:
        """What of its greedy continuation each prompt has said.

        A request with a number is aborted before the step of that number, if it still runs.
        """

        def abort(step: int, _: dict[int, list[int]]) -> None:
            due = [str(index) for index, at in enumerate(aborts) if at == step]
            self._llm.llm_engine.abort_request(due)

        said = self._step_through(prompts, max_tokens, abort)
        return [said.get(index, []) for index in range(len(prompts))]

    def _step_through(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        before_step: Callable[[int, dict[int, list[int]]], None],
    ) -> dict[int, list[int]]:
        """What each prompt has said; before a step it is told its number and what was said."""
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), {"prompt_token_ids": prompt}, sampling)
        said: dict[int, list[int]] = {}
        step = 0
        while engine.has_unfinished_requests():
            before_step(step, said)
            for output in engine.step():
                said[int(output.request_id)] = list(output.outputs[0].token_ids)
            step += 1
        return said

    @property
    def _scheduler(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def _has_worker(self) -> bool:
        from vllm.distributed.kv_transfer import has_kv_transfer_group

        return bool(has_kv_transfer_group())  # in this process: with several ranks it has none

    @property
    def _worker_connector(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    def counters(self) -> dict[str, int]:
        """Both sides' counters since the start, but for workers in processes of their own."""
        sides = [self._scheduler.connector.scheduler]
        if self._has_worker:
            sides.append(self._worker_connector.worker)
        totals = [side.counters.totals for side in sides]
        return {name: sum(total[name] for total in totals) for name in totals[0]}

    def block(self, prompt: list[int], index: int) -> dict[str, Any]:
        """Where the store has one block of a prompt."""
        from infinistore.keys import block_hashes, block_names

        scheduler = self._scheduler.connector.scheduler
        shape = scheduler.shape
        names = block_names(block_hashes(prompt, shape.block_tokens))
        return {
            "key": shape.parts.keys(names)[index].decode(),
            "bytes": self._worker_connector.worker.value_bytes,
            "namespace": self._worker_connector.link.namespace,
        }

    def links(self) -> dict[str, Any]:
        """What the clients of both sides are connected to."""
        clients = [self._scheduler.connector.link.client, self._worker_connector.link.client]
        return {"transports": [client.transport for client in clients if client is not None]}

    def metrics(self) -> dict[str, int]:
        """vLLM's counters by name, those of our connector among them."""
        from prometheus_client import REGISTRY

        return {
            metric.name: int(sum(s.value for s in metric.samples if s.name.endswith("_total")))
            for metric in REGISTRY.collect()
            if metric.type == "counter"
        }

    def preemptions(self) -> int:
        """How often vLLM preempted a request."""
        for metric in self._llm.get_metrics():
            if metric.name == "vllm:num_preemptions":
                return int(metric.value)
        raise LookupError("vllm:num_preemptions")

    def hold(self, layer: int) -> str:
        """Makes the model stop once before a layer, say so, and wait for a line."""
        model = self._scheduler_model()
        held = model.layers[layer]

        def stop(*_: object) -> None:
            handle.remove()
            self.say("held")
            sys.stdin.readline()

        handle = held.register_forward_pre_hook(stop)
        return "ready"

    def _model(self) -> Any:
        engine = self._llm.llm_engine.engine_core.engine_core
        worker = engine.model_executor.driver_worker
        return getattr(worker, "worker", worker).model_runner.model

    def _scheduler_model(self) -> Any:
        model = self._model()
        return getattr(model.model, "decoder", model.model)

    def hold_load(self) -> str:
        """Makes the worker stop once before it asks for blocks, say so, and wait for a line.

        It says "asked" when it has asked.
        """
        connector = self._worker_connector
        inner = connector.start_load_kv

        def start(*arguments: Any, **more: Any) -> None:
            if not connector.worker._plan.loads:
                inner(*arguments, **more)
                return
            connector.start_load_kv = inner
            self.say("loading")
            sys.stdin.readline()
            inner(*arguments, **more)
            self.say("asked")

        connector.start_load_kv = start
        return "ready"

    def configure(self, save_pause_s: float | None = None, **changes: Any) -> str:
        """Changes settings of both sides of the connector while nothing runs."""
        import dataclasses

        from infinistore.connectors.vllm import saves

        for side in (self._scheduler.connector.scheduler, self._worker_connector.worker):
            side._settings = dataclasses.replace(side._settings, **changes)
        if save_pause_s is not None:
            saves._PAUSE_S = saves._PAUSE_MAX_S = save_pause_s
            self._worker_connector.worker._gate = saves.SaveGate()
        return "ready"

    def watch(self, tells: bool = True) -> str:
        """Begins to measure how long each of the worker connector's calls takes, and each step.

        If it `tells`, it says "waiting" when the first save is about to be waited for.
        """
        import time

        connector = self._worker_connector
        first = iter((tells,))
        hooks = ("save_kv_layer", "wait_for_save", "wait_for_layer_load", "start_load_kv")
        engine = self._llm.llm_engine
        for owner, name in [(engine, "step"), *((connector, hook) for hook in hooks)]:
            inner = getattr(owner, name)

            def timed(*arguments: Any, _name: str = name, _inner: Any = inner, **more: Any) -> Any:
                if _name == "wait_for_save" and connector.worker._step_saves and next(first, False):
                    self.say("waiting")
                began = time.monotonic()
                try:
                    return _inner(*arguments, **more)
                finally:
                    taken = self._durations.setdefault(_name, [])
                    taken.append(time.monotonic() - began)

            setattr(owner, name, timed)
        return "ready"

    def durations(self) -> dict[str, list[float]]:
        """What `watch` measured since the last call."""
        taken, self._durations = self._durations, {}
        return taken

    def threads(self) -> dict[str, list[int]]:
        """The CPUs on which each of the process's threads may run, by thread name."""
        found: dict[str, list[int]] = {}
        for task in Path("/proc/self/task").iterdir():
            name = (task / "comm").read_text().strip()
            found[name] = sorted(os.sched_getaffinity(int(task.name)))
        return found


def main() -> None:
    """Keeps the answers' pipe for answers: whatever else prints goes to the log."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        from vllm import LLM  # noqa: F401, it takes so long

        settings = sys.stdin.readline()
        if not settings:
            return
        program = Program(answers, json.loads(settings))
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        answers.flush()
        raise
    program.run()


if __name__ == "__main__":
    main()
