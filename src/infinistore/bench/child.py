"""Contenders in processes of their own: a peer's packages may clash, and clients may be many.

`python -m infinistore.bench.child RECIPE` makes the contender that the recipe names, on an arena of
its own, and obeys lines on its stdin: JSON objects with "do", each answered by one. What a package
prints goes to stderr, so that it cannot come between.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from infinistore.bench.figures import Case, Sample, Verb
from infinistore.bench.process import ChildProcess
from infinistore.bench.rounds import Pass, cpu_of_all_s, timed
from infinistore.errors import SetupError

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 300.0
STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a child makes its contender: `make` is "module:callable", called with the arena."""

    make: str
    arena_bytes: int
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Fleet:
    """An entrant of one or more children, each with an arena of its own, that run a pass at once.

    A pass takes from the first child's start to the last one's end; its bytes and batches are those
    of all children together. `far_pids` are what serves them. With `rests` all these processes are
    stopped between their passes: some poll without end, which others would pay for.
    """

    def __init__(
        self,
        name: str,
        recipes: Sequence[Recipe],
        log: Path,
        *,
        far_pids: tuple[int, ...] = (),
        environment: Mapping[str, str] | None = None,
        rests: bool = False,
    ) -> None:
        """Starts the children and waits for them. Raises `SetupError` with what one said."""
        self.name = name
        self.far_pids = far_pids
        self._rests = rests
        self._children: list[ChildProcess] = []
        try:
            for recipe in recipes:
                argv = [sys.executable, "-m", "infinistore.bench.child", json.dumps(asdict(recipe))]
                self._children.append(ChildProcess(name, argv, log, environment=environment))
            for child in self._children:
                _answer_of(child, START_TIMEOUT_S)
            self._signal_if_resting(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def run(self, case: Case, seed: int, verbs: Sequence[Verb]) -> Pass:
        """Each child moves an equal share of the case's blocks, in an order of its own arena."""
        self._signal_if_resting(signal.SIGCONT)
        found = self._pass(case, seed, verbs)
        self._signal_if_resting(signal.SIGSTOP)
        return found

    def _signal_if_resting(self, number: signal.Signals) -> None:
        if self._rests:
            for pid in (*self.far_pids, *(child.pid for child in self._children)):
                os.kill(pid, number)

    def _pass(self, case: Case, seed: int, verbs: Sequence[Verb]) -> Pass:
        count = max(1, case.block_count // len(self._children))
        share = Case(case.block_bytes, count, min(count, case.batch_blocks), case.waits)
        self._ask({"do": "prepare", "case": asdict(share), "seed": seed})
        samples: dict[Verb, Sample] = {}
        for verb in verbs:
            far_before = cpu_of_all_s(self.far_pids)
            answers = self._ask({"do": verb})
            far_s = cpu_of_all_s(self.far_pids) - far_before if self.far_pids else None
            samples[verb] = _joined(answers, far_s)
        wrong = sum(answer["wrong"] for answer in self._ask({"do": "finish"}))
        return Pass(samples, count * len(self._children), wrong)

    def touch(self, size: int) -> None:
        """Has every child, one after another, use `size` bytes of the pool once."""
        for child in self._children:
            child.write_line(json.dumps({"do": "touch", "size": size}))
            _answer_of(child, ANSWER_TIMEOUT_S)

    def _ask(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        line = json.dumps(order)
        for child in self._children:
            child.write_line(line)
        return [_answer_of(child, ANSWER_TIMEOUT_S) for child in self._children]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._signal_if_resting(signal.SIGCONT)
        for child in self._children:
            child.close(STOP_GRACE_S)


def _joined(answers: Sequence[Mapping[str, Any]], far_s: float | None) -> Sample:
    began = min(answer["began"] for answer in answers)
    ended = max(answer["began"] + answer["seconds"] for answer in answers)
    return Sample(
        seconds=ended - began,
        cpu_near_s=sum(answer["cpu_near_s"] for answer in answers),
        cpu_far_s=far_s,
        batches_s=tuple(taken for answer in answers for taken in answer["batches_s"]),
    )


def _answer_of(child: ChildProcess, timeout_s: float) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(child.read_line(timeout_s))
    if "error" in answer:
        raise SetupError(f"{child.name}: {answer['error']}")
    return answer


# ---- in the child ----


class _Obeyer:
    """The child's side: one contender, one arena, one order at a time."""

    def __init__(self, recipe: Recipe) -> None:
        from infinistore.bench.memory import Arena

        self._arena = Arena(recipe.arena_bytes, recipe.seed)
        module, _, name = recipe.make.partition(":")
        make = getattr(importlib.import_module(module), name)
        self._contender = make(self._arena, **recipe.arguments)

    def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if order["do"] == "prepare":
            self._case = Case(**order["case"])
            self._order = self._arena.shuffle(
                self._case.block_bytes, self._case.block_count, order["seed"]
            )
            self._contender.prepare(self._case, self._order)
            self._arena.forget()
            return {}
        if order["do"] == "touch":
            self._contender.touch(order["size"])
            return {}
        if order["do"] == "finish":
            wrong = self._arena.wrong_blocks(self._order, self._case.block_bytes)
            self._contender.clean()
            return {"wrong": wrong}
        return self._sample(order["do"])

    def _sample(self, verb: str) -> dict[str, Any]:
        began = time.perf_counter()  # CLOCK_MONOTONIC: the same in all processes
        return {"began": began, **asdict(timed(getattr(self._contender, verb)))}

    def close(self) -> None:
        self._contender.close()


def _serve(recipe: Recipe, orders: IO[str], answers: IO[str]) -> None:
    def answer(document: Mapping[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        with contextlib.closing(_Obeyer(recipe)) as obeyer:
            answer({})
            for line in orders:
                answer(obeyer.obey(json.loads(line)))
    except Exception as error:
        import traceback

        traceback.print_exc()  # to the log
        answer({"error": f"{type(error).__name__}: {error}"})


def main(text: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(Recipe(**json.loads(text)), sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1])
