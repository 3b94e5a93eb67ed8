"""`make proof-cpu`: CPU seconds that the connector adds to a cold prefill, and a hit's wait.

Two vLLMs with the engine in the process itself are asked the same prompts in turn: a plain one, and
ours with its connector and with the connector taken out. Two processes of one program differ by
more than the promise (where their memory lies), so ours is compared with itself, and the plain one
is the control. One request at a time, one token each. Writes build/connector_cpu.json; exit status
1 if a line is short.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import connector_figures as figures  # noqa: E402
from demo import engines  # noqa: E402
from demo.children import ChildError, Children  # noqa: E402
from demo.report import Narrator  # noqa: E402
from demo.verdict import whole_block_tokens  # noqa: E402

if TYPE_CHECKING:
    from connector_figures import Line

_PLAIN, _OURS = "plain vLLM", "vLLM with InfiniStore"
# Small: it is full, and every page of it mapped, before the measurement begins.
_POOL_MIB = 320
_WARM_UPS = 2
_START_S = 600.0
_VOCABULARY = range(100, 40_000)
_ENVIRONMENT = {**engines.ENGINE_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def engine_settings(model: Path, kv_transfer: dict[str, Any] | None) -> dict[str, Any]:
    """What both vLLMs are started with: a prompt is one step, and fits the cache."""
    settings: dict[str, Any] = {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": engines.BLOCK_TOKENS,
        "max_model_len": engines.CONTEXT_TOKENS,
        "max_num_batched_tokens": engines.CONTEXT_TOKENS,
        "max_num_seqs": 8,
        "num_gpu_blocks_override": 2 * engines.CONTEXT_TOKENS // engines.BLOCK_TOKENS,
    }
    return settings | ({"kv_transfer_config": kv_transfer} if kv_transfer else {})


class EngineProcess:
    """One vLLM in a process of its own, and the line to it."""

    def __init__(
        self, children: Children, name: str, settings: dict[str, Any], folder: Path, threads: int
    ) -> None:
        """Starts it; `ready` waits for it."""
        self._where = folder / name.split()[0]
        cores = sorted(os.sched_getaffinity(0))[:threads]
        variables = {
            **_ENVIRONMENT,
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        }
        program = ROOT / "benchmarks" / "connector_engine.py"
        self._child = children.start(
            name,
            [sys.executable, str(program), str(self._where), json.dumps(settings)],
            ROOT / "build" / "connector-cpu" / f"{self._where.name}.log",
            engines.environment(variables),
        )

    def ready(self) -> None:
        """Waits until the model is loaded."""
        self._child.wait(self._where.exists, _START_S)
        self._line = Client(str(self._where), "AF_UNIX")

    def call(self, verb: str, **arguments: object) -> Any:
        """Calls and waits for the answer."""
        self._line.send_bytes(json.dumps({"verb": verb, **arguments}).encode())
        try:
            return json.loads(self._line.recv_bytes())
        except (EOFError, ConnectionError):
            tail = self._child.tail()
            raise ChildError(f"{self._child.name} hung up:\n{tail}") from None


class Measurement:
    """The store and both vLLMs, and the questions to them."""

    def __init__(
        self, children: Children, model: Path, transport: str, threads: int, folder: Path
    ) -> None:
        """Starts everything."""
        log = ROOT / "build" / "connector-cpu" / "store.log"
        self._store = engines.start_store(children, log, f"{_POOL_MIB}MiB")
        transfer = engines.connector_config(self._store, transport, engines.PATIENCE)
        self._engines = {
            name: EngineProcess(children, name, engine_settings(model, kv), folder, threads)
            for name, kv in ((_PLAIN, None), (_OURS, transfer))
        }
        for engine in self._engines.values():
            engine.ready()
        self._engines[_OURS].call("fill", pool_bytes=_POOL_MIB << 20)
        self._random = random.Random(20)
        self.hooks: dict[int, list[dict[str, Any]]] = {}

    def prompt(self, tokens: int) -> list[int]:
        """Token ids that nobody has seen."""
        return self._random.choices(_VOCABULARY, k=tokens)

    def ask(
        self, name: str, prompt: list[int], *, is_connected: bool, is_kept: bool = False
    ) -> dict[str, Any]:
        """One answer, with the server's CPU seconds."""
        began_s = self._server_cpu_s()
        answer = self._engines[name].call(
            "ask", prompt=prompt, is_connected=is_connected, is_kept=is_kept
        )
        return {**answer, "server_s": self._server_cpu_s() - began_s}

    def _server_cpu_s(self) -> float:
        return time.clock_gettime(~self._store.child.pid << 3 | 2)  # the CPU clock of a process

    def cold(self, tokens: int, number: int) -> figures.Cold:
        """One prompt on all three, in each order in turn: a drift of the machine favours nobody."""
        prompt = self.prompt(tokens)
        turns = [(_PLAIN, False), (_OURS, False), (_OURS, True)]
        orders = list(itertools.permutations(turns))
        found = {}
        for turn in orders[number % len(orders)]:
            found[turn] = self.ask(turn[0], prompt, is_connected=turn[1])
            if found[turn]["cached"]:
                raise ChildError(f"{turn[0]} had {found[turn]['cached']} tokens of a new prompt")
        plain, without, ours = (found[turn] for turn in turns)
        self.hooks.setdefault(tokens, []).append(ours)
        return figures.Cold(
            tokens,
            plain["cpu_s"],
            without["cpu_s"],
            ours["cpu_s"],
            ours["hooks_s"] + ours["client_s"] + ours["idle_steps_s"],
            ours["server_s"],
        )

    def warm(self, tokens: int) -> figures.Warm:
        """One prompt from the store, then from the engine's own cache without a connector."""
        prompt = self.prompt(tokens)
        self.ask(_OURS, prompt, is_connected=True)
        hit = self.ask(_OURS, prompt, is_connected=True)
        own = self.ask(_OURS, prompt, is_connected=False, is_kept=True)
        expected = whole_block_tokens(tokens, engines.BLOCK_TOKENS)
        if not hit["cached"] == own["cached"] == expected:
            raise ChildError(f"{hit['cached']} and {own['cached']} tokens hit, not {expected}")
        return figures.Warm(
            tokens,
            hit["ttft_s"],
            hit["lookup_s"],
            hit["load_s"],
            own["ttft_s"],
            hit["server_s"],
        )


def profile(answers: list[dict[str, Any]]) -> str:
    """Where the connector's CPU goes: the means of its parts, the largest first."""
    parts: dict[str, tuple[float, float]] = {
        "the client's threads": (1, statistics.fmean(a["client_s"] for a in answers)),
        "steps without work": (1, statistics.fmean(a["idle_steps_s"] for a in answers)),
    }
    for name in {name for answer in answers for name in answer["hooks"]}:
        counts = [answer["hooks"].get(name, (0, 0.0)) for answer in answers]
        calls, spent_s = (statistics.fmean(column) for column in zip(*counts, strict=True))
        parts[name] = (calls, spent_s)
    ordered = sorted(parts.items(), key=lambda item: -item[1][1])
    shown = [f"{name} {1e3 * s:.2f} ms ({n:.1f} calls)" for name, (n, s) in ordered if s > 5e-5]
    return "; ".join(shown)


def measure(measurement: Measurement, tokens: int, pairs: int, say: Narrator) -> list[Line]:
    """The lines of one length of prompts; says what is beside them."""
    for number in range(_WARM_UPS):
        measurement.cold(tokens, number)
    measurement.hooks.clear()
    cold = []
    for number in range(pairs):
        say.tick(f"{tokens} tokens, pair {number + 1} of {pairs}")
        cold.append(measurement.cold(tokens, number))
    warm = [measurement.warm(tokens) for _ in range(max(pairs // 2, 5))]
    for fact in (*figures.cold_facts(cold), *figures.warm_facts(warm)):
        say.say(f"{tokens} tokens: {fact}")
    say.say(f"{tokens} tokens: {profile(measurement.hooks[tokens])}")
    return [*figures.cold_lines(cold), *figures.warm_lines(warm)]


def run(model: Path, transport: str, threads: int, pairs: int, lengths: tuple[int, ...]) -> int:
    """Measures, prints, writes; 0 if no line is short."""
    say = Narrator()
    lines: list[Line] = []
    with Children() as children, tempfile.TemporaryDirectory() as folder:
        say.say(f"a store and two vLLMs start; {transport}, {threads} thread(s) each")
        measurement = Measurement(children, model, transport, threads, Path(folder))
        for tokens in lengths:
            lines += measure(measurement, tokens, pairs, say)
    content = {"lines": [dataclasses.asdict(line) for line in lines], "load": os.getloadavg()}
    (ROOT / "build" / "connector_cpu.json").write_text(json.dumps(content, indent=2) + "\n")
    for line in lines:
        print(line)
    return 0 if all(line.ok for line in lines) else 1


@click.command()
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT / "build" / "models" / "smollm2-135m",
    help="A model's directory.",
)
@click.option("--transport", default="shm", type=click.Choice(["shm", "tcp"]))
@click.option("--threads", default=1, show_default=True, help="OpenMP threads of each vLLM.")
@click.option("--pairs", default=15, show_default=True, help="Prompts of each length.")
@click.option(
    "--tokens", "lengths", multiple=True, type=int, default=(515, 1503), show_default=True
)
def command(
    model: Path, transport: str, threads: int, pairs: int, lengths: tuple[int, ...]
) -> None:
    """Measure what the connector adds to a cold prefill, and how long a hit waits."""
    try:
        sys.exit(run(model, transport, threads, pairs, lengths))
    except (ChildError, OSError) as error:
        sys.exit(f"connector-cpu: {error}")
    except KeyboardInterrupt:
        sys.exit("connector-cpu: stopped")


if __name__ == "__main__":
    command()
