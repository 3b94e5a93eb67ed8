"""vLLM with our connector on a GPU, beside plain vLLM and vLLM's own OffloadingConnector.

    python3 scripts/gpu/vllm_bench.py times --out DIR     times to the first token
    python3 scripts/gpu/vllm_bench.py outputs --out DIR   equal tokens, equal bytes
    python3 scripts/gpu/vllm_bench.py outputs --kv-dtype fp8 --out DIR    with a quantised KV cache

Writes DIR/*.json, DIR/*.md and the engines' logs; exit status 1 if a target is missed. With
`--tiny MODEL` a small model on a CPU, to try the program itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import gpu_entrants as entrants  # noqa: E402
import gpu_figures as figures  # noqa: E402
from demo import engines as demo  # noqa: E402
from demo.children import ChildError, Children  # noqa: E402
from demo.client import get  # noqa: E402
from gpu_engine import Engine, EngineError  # noqa: E402
from gpu_entrants import ENTRANTS, Entrant, Machine  # noqa: E402
from gpu_outputs import Outputs  # noqa: E402
from gpu_times import Times, TimesError  # noqa: E402

_POPULATE_S = 90.0
_SIZES = (1024, 4096, 8192, 16_000)
_TINY_SIZES = (128, 256, 512, 960)
_OUTPUT_SIZES = (500, 1300, 2048, 3001, 4500, 6000)
_TINY_OUTPUT_SIZES = (100, 193, 256, 600)


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"{time.monotonic() - _BEGAN_S:6.1f} s  {text}", flush=True)


_BEGAN_S = time.monotonic()


def machine_of(tiny: Path | None, out: Path, *, is_checked: bool) -> Machine:
    """Where this runs; `is_checked`: outputs are compared, so they must be comparable."""
    if tiny is not None:
        return Machine(tiny, False, 32, 1024, 0, is_checked, is_checked)
    model = entrants.write_llama(out / "model")
    # Room for the longest prompt and half of another; the engines lie on the GPU side by side.
    return Machine(model, True, 16, 16_384, 3 << 30, is_checked, is_checked)


@contextlib.contextmanager
def running(
    machine: Machine, chosen: list[Entrant], store: demo.Store, logs: Path, *, in_turn: bool
) -> Iterator[list[Engine]]:
    """The engines, all started at once, or one after the other."""
    started: list[Engine] = []
    try:
        for entrant in chosen:
            started.append(machine.start(entrant, store.url, logs))
            if in_turn:
                started[-1].ready()
                say(f"{entrant.name} is ready")
        yield started
    finally:
        for engine in started:
            engine.stop()


def finish(lines: list[str], is_kept: bool, table: str, out: Path, name: str) -> int:
    """Prints and writes the end of a run; returns the exit status."""
    text = "\n".join([*([table, ""] if table else []), *lines])
    print(text, flush=True)
    (out / f"{name}.md").write_text(text + "\n")
    say("all kept" if is_kept else "SHORT")
    return 0 if is_kept else 1


def guarded(run: Callable[[Children], int]) -> None:
    """Runs with children, and ends them."""
    try:
        with Children() as children:
            sys.exit(run(children))
    except (EngineError, TimesError, ChildError, OSError) as error:
        sys.exit(f"vllm_bench: {error}")
    except KeyboardInterrupt as stopped:
        sys.exit(f"vllm_bench: stopped by {stopped or 'Ctrl-C'}")


@click.group()
def command() -> None:
    """Measure and check the vLLM connector on a GPU."""


_COMMON = (
    click.option("--out", type=click.Path(path_type=Path), required=True, help="For results."),
    click.option("--tiny", type=click.Path(exists=True, path_type=Path), help="A model for CPUs."),
    click.option("--pool", default="8GiB", show_default=True, help="The store's."),
    click.option("--in-turn", is_flag=True, help="Start one engine after the other."),
)


def common(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that both commands have."""
    for option in reversed(_COMMON):
        function = option(function)
    return function


def wait_populated(store: demo.Store) -> None:
    """Waits for all of the pool: a first touch costs more than a copy."""
    began_s = time.monotonic()
    while get(store.admin + "/health")["populating"]:
        if time.monotonic() - began_s > _POPULATE_S:
            raise ChildError(f"the store did not populate its pool in {_POPULATE_S:.0f} s")
        time.sleep(0.2)
    say(f"the store at {store.url} is populated")


@command.command()
@common
@click.option("--count", default=6, show_default=True, help="Prompts of each size.")
@click.option("--sizes", help="Prompt sizes in tokens, joined by commas.")
@click.option(
    "--entrants",
    "names",
    default="plain,plain-1,offload,async,layerwise",
    show_default=True,
    help=f"Which of {','.join(ENTRANTS)}.",
)
def times(
    out: Path, tiny: Path | None, pool: str, in_turn: bool, count: int, sizes: str, names: str
) -> None:
    """Time the first token of cold prompts and of hits, one request at a time."""
    out.mkdir(parents=True, exist_ok=True)
    machine = machine_of(tiny, out, is_checked=False)
    chosen = [ENTRANTS[name] for name in names.split(",")]
    if not machine.is_gpu:
        chosen = [entrant for entrant in chosen if not entrant.is_offloading]
    prompt_sizes = [int(size) for size in sizes.split(",")] if sizes else []
    prompt_sizes = prompt_sizes or list(_SIZES if machine.is_gpu else _TINY_SIZES)

    def run(children: Children) -> int:
        store = demo.start_store(children, out / "store.log", pool)
        with running(machine, chosen, store, out / "logs", in_turn=in_turn) as started:
            pairs = list(zip(chosen, started, strict=True))
            measured = Times(machine, pairs, out / "times.json", say)
            wait_populated(store)
            try:
                measured.run(prompt_sizes, count)
            finally:
                measured.write()
        samples = figures.Samples(measured.samples)
        promises = figures.promises(samples, measured.waits)
        about = json.dumps(measured.facts[chosen[0].name])
        table = figures.markdown(samples, f"{about}; {count} prompts of each size, medians.")
        for line in figures.where_time_goes(measured.timelines, prompt_sizes[-1]):
            print(line, flush=True)
        for line in figures.what_waits(measured.waits):
            print(line, flush=True)
        is_kept = all(promise.is_kept for promise in promises if promise.is_counted)
        return finish([p.line() for p in promises], is_kept, table, out, "times")

    guarded(run)


@command.command()
@common
@click.option("--answer-tokens", default=32, show_default=True, help="Of each answer.")
@click.option("--variant/--invariant", "is_variant", default=False, help="Leave vLLM's sums as is.")
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]),
    default="auto",
    show_default=True,
    help="Of the KV caches.",
)
def outputs(
    out: Path,
    tiny: Path | None,
    pool: str,
    in_turn: bool,
    answer_tokens: int,
    is_variant: bool,
    kv_dtype: str,
) -> None:
    """Compare the answers and the bytes of a prefill and of decodes with plain vLLM's."""
    out.mkdir(parents=True, exist_ok=True)
    machine = machine_of(tiny, out, is_checked=True)
    machine = dataclasses.replace(machine, is_invariant=not is_variant, kv_dtype=kv_dtype)
    name = "outputs" if kv_dtype == "auto" else f"outputs-{kv_dtype}"
    sizes = _OUTPUT_SIZES if machine.is_gpu else _TINY_OUTPUT_SIZES
    prefill = dataclasses.replace(ENTRANTS["async"], name="prefill")
    decodes = [ENTRANTS["async"], ENTRANTS["layerwise"]]
    plain = [entrant for entrant in ENTRANTS.values() if entrant.name in {d.plain for d in decodes}]
    if not machine.is_gpu:  # its two runners are one
        decodes = [dataclasses.replace(entrant, is_first_runner=False) for entrant in decodes]
        plain = plain[:1]
    chosen = [prefill, *decodes, *plain]

    def run(children: Children) -> int:
        store = demo.start_store(children, out / "store.log", pool)
        with running(machine, chosen, store, out / "logs", in_turn=in_turn) as started:
            pairs = list(zip(chosen, started, strict=True))
            by_name = {entrant.name: engine for entrant, engine in pairs[3:]}
            checked = Outputs(machine, store, by_name, pairs[0], pairs[1:3], say)
            wait_populated(store)
            try:
                checked.run(sizes, answer_tokens)
            finally:
                checked.write(out / f"{name}.json")
        is_kept = all(check.is_held for check in checked.checks)
        return finish([check.line() for check in checked.checks], is_kept, "", out, name)

    guarded(run)


if __name__ == "__main__":
    command()
