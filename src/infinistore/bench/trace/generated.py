"""Workloads of a generator of our own: what LLM services are publicly known to be asked.

Numbers are round and plausible, none is fitted to a recorded trace: `reuse` is tuned on these, so
that recorded traces stay a test. Times are seconds, sizes are blocks of some hundred tokens.
Users think for a lognormal time after they have read an answer; popularity follows Zipf's law;
arrivals are Poisson, their rate going up and down by the day (shortened to two hours).
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infinistore.bench.trace.prompts import Trace

DURATION_S = 4 * 3600.0
DAY_S = 2 * 3600.0
SEED = 1
BLOCK_SECONDS = 5.0  # of an answer: some hundred tokens at tens of tokens a second

Prompt = list[int]
Session = Iterator[tuple[float, Prompt]]  # seconds after the one before, and what is asked


@dataclass(frozen=True, slots=True)
class Dice:
    """A random source and the numbers of new blocks."""

    random: random.Random
    numbers: Iterator[int]

    def blocks(self, mean: float) -> Prompt:
        """New ones, at least one; lognormal with a wide spread, as prompts' lengths have it."""
        size = self.random.lognormvariate(math.log(mean) - 0.5, 1.0)
        return list(itertools.islice(self.numbers, max(1, round(size))))

    def think_s(self, median: float) -> float:
        return self.random.lognormvariate(math.log(median), 1.0)

    def zipf(self, shared: list[Prompt]) -> Prompt:
        """One of these, the nth as often as 1/n."""
        weights = [1 / rank for rank in range(1, len(shared) + 1)]
        return self.random.choices(shared, weights)[0]

    def turns(self, mean: float) -> int:
        """Geometric, at least one."""
        return 1 + int(math.log(1 - self.random.random()) / math.log(1 - 1 / mean))


def _turns(dice: Dice, start: Prompt, mean_turns: float, asked: float, think_s: float) -> Session:
    """Each prompt is the one before, its answer, and a further question."""
    context, wait = list(start), 0.0
    for _ in range(dice.turns(mean_turns)):
        context += dice.blocks(asked)
        yield wait, list(context)
        answer = dice.blocks(2)
        context += answer
        wait = len(answer) * BLOCK_SECONDS + dice.think_s(think_s)


def _once(dice: Dice, start: Prompt, mean: float) -> Session:
    yield 0.0, start + dice.blocks(mean)


def _document(dice: Dice) -> Session:
    """A long document, then questions on it that do not build on each other."""
    document = dice.blocks(40)
    for turn in range(dice.turns(3)):
        yield dice.think_s(60) if turn else 0.0, document + dice.blocks(1)


def _chat(dice: Dice, systems: list[Prompt]) -> Session:
    return _turns(dice, dice.zipf(systems), mean_turns=3, asked=3, think_s=45)


def _agent(dice: Dice, systems: list[Prompt]) -> Session:
    """Tools answer within seconds; each step adds what they said."""
    return _turns(dice, dice.zipf(systems), mean_turns=10, asked=3, think_s=3)


def _mixed(dice: Dice, systems: list[Prompt]) -> Session:
    kinds: list[Callable[[], Session]] = [
        lambda: _chat(dice, systems),
        lambda: _once(dice, dice.zipf(systems), 8),
        lambda: _agent(dice, systems),
        lambda: _document(dice),
    ]
    return dice.random.choices(kinds, [50, 35, 10, 5])[0]()


@dataclass(frozen=True, slots=True)
class Workload:
    """How a session goes, how many system prompts there are, and sessions a second on average."""

    session: Callable[[Dice, list[Prompt]], Session]
    systems: int
    rate: float


WORKLOADS: dict[str, Workload] = {
    "chat": Workload(_chat, 4, 0.15),
    "chat and single": Workload(
        lambda dice, systems: (
            _chat(dice, systems)
            if dice.random.random() < 0.4
            else _once(dice, dice.zipf(systems), 8)
        ),
        50,
        0.25,
    ),
    "agents": Workload(_agent, 20, 0.05),
    "documents": Workload(lambda dice, _: _document(dice), 1, 0.08),
    "mixed": Workload(_mixed, 20, 0.15),
}


def _starts(random_: random.Random, rate: float) -> Iterator[float]:
    """Poisson arrivals whose rate goes between half and one and a half of the average."""
    now = 0.0
    while (now := now + random_.expovariate(rate * 1.5)) < DURATION_S:
        if random_.random() < (1 + 0.5 * math.sin(2 * math.pi * now / DAY_S)) / 1.5:
            yield now


def generate(name: str, seed: int = SEED) -> Trace:
    """The prompts of a workload in the order of their arrival; the same for the same seed."""
    workload = WORKLOADS[name]
    dice = Dice(random.Random(f"{name} {seed}"), itertools.count())
    systems = [dice.blocks(4) for _ in range(workload.systems)]
    order = itertools.count()  # of equal times
    due: list[tuple[float, int, Prompt, Session]] = []

    def go_on(now: float, session: Session) -> None:
        if (asked := next(session, None)) and now + asked[0] < DURATION_S:
            heapq.heappush(due, (now + asked[0], next(order), asked[1], session))

    for start in _starts(dice.random, workload.rate):
        go_on(start, workload.session(dice, systems))
    prompts = []
    while due:
        now, _, prompt, session = heapq.heappop(due)
        prompts.append(prompt)
        go_on(now, session)
    return Trace(name, prompts)


def generated_traces(seed: int = SEED) -> list[Trace]:
    """One trace a workload."""
    return [generate(name, seed) for name in WORKLOADS]
