"""Times to the first token: every engine is asked the same prompts in turn, cold and as hits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_figures as figures
from gpu_engine import Engine
from gpu_entrants import Entrant, Machine
from gpu_figures import COLD, HIT, Sample

_WARM_UP_SEED = 900_000


class TimesError(RuntimeError):
    """An engine cannot be brought to where a request would be timed."""


class Times:
    """One run; what was measured so far is in `samples`, and in the file."""

    def __init__(
        self,
        machine: Machine,
        engines: Sequence[tuple[Entrant, Engine]],
        out: Path,
        say: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._engines = list(engines)
        self._out = out
        self._say = say
        self.samples: list[Sample] = []
        self.facts: dict[str, Any] = {}
        self.timelines: list[dict[str, Any]] = []
        self.waits: list[dict[str, Any]] = []
        self._seed = 0

    def run(self, sizes: Sequence[int], count: int) -> None:
        """Warms up, then `count` prompts of each size; the engines take turns in being first."""
        self.facts = {entrant.name: engine.ready() for entrant, engine in self._engines}
        self._say(f"{len(self._engines)} engines are ready")
        for tokens in sizes:
            for entrant, engine in self._engines:
                self._ask(entrant, engine, tokens, _WARM_UP_SEED + tokens)
            self._say(f"{tokens} tokens: warm")
            for number in range(count):
                self._seed += 1
                shift = number % len(self._engines)
                for entrant, engine in self._engines[shift:] + self._engines[:shift]:
                    self.samples += self._ask(entrant, engine, tokens, self._seed)
                self.write()
        for entrant, engine in self._engines:
            if entrant.mode is not None:
                self._look(entrant, engine, sizes)
            if self._machine.is_gpu and not entrant.is_offloading:
                self._count_waits(entrant, engine, sizes[-1])
        self.write()

    def _ask(self, entrant: Entrant, engine: Engine, tokens: int, seed: int) -> list[Sample]:
        block = self._machine.block_tokens
        whole = (tokens - 1) // block * block
        cold = engine.call("generate", seed=seed, tokens=tokens, max_tokens=1)
        if entrant.mode is not None or entrant.is_offloading:
            self._forget(engine)
        hit = engine.call("generate", seed=seed, tokens=tokens, max_tokens=1)
        self._forget(engine)
        return [
            Sample(entrant.name, COLD, tokens, cold["ms"], cold["cached"], 0),
            Sample(entrant.name, HIT, tokens, hit["ms"], hit["cached"], whole),
        ]

    @staticmethod
    def _forget(engine: Engine) -> None:
        if not engine.call("forget"):
            raise TimesError(f"{engine.name} does not forget its own prefix cache")

    def _look(self, entrant: Entrant, engine: Engine, sizes: Sequence[int]) -> None:
        """Where the time of a cold request and of a hit goes, beside what is timed."""
        for tokens in sizes:
            self._seed += 1
            for kind in (COLD, HIT):
                timeline = engine.call("timeline", seed=self._seed, tokens=tokens)
                self._forget(engine)
                self.timelines.append(
                    {"engine": entrant.name, "kind": kind, "tokens": tokens, **timeline}
                )
        self.facts[entrant.name]["counters"] = engine.call("counters")

    def _count_waits(self, entrant: Entrant, engine: Engine, tokens: int) -> None:
        self._seed += 1
        for kind in (COLD, HIT):
            waits = engine.call("waits", seed=self._seed, tokens=tokens)
            if kind == HIT or entrant.mode is not None:
                self._forget(engine)
            self.waits.append({"engine": entrant.name, "kind": kind, **waits})

    def write(self) -> None:
        """Writes what there is: a run that is cut off leaves what it measured."""
        samples = figures.Samples(self.samples)
        content = {
            "facts": self.facts,
            "promises": [dataclasses.asdict(p) for p in figures.promises(samples, self.waits)],
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
            "timelines": self.timelines,
            "waits": self.waits,
        }
        self._out.write_text(json.dumps(content, indent=1) + "\n")
