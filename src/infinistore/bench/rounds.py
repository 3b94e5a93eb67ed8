"""Runs the contenders in turns, so that what the machine does meanwhile falls on all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from infinistore.bench.figures import MOVES, Case, Sample, Verb
from infinistore.errors import CorruptError

if TYPE_CHECKING:
    from infinistore.bench.memory import Arena, Order


class Contender(Protocol):
    """Something that moves a case's blocks away from the arena's source, and back to its target.

    A verb returns the seconds of each batch if it waited for each before the next, else nothing.
    """

    name: str
    far_pids: tuple[int, ...]

    def prepare(self, case: Case, order: Order) -> None: ...
    def write(self) -> Sequence[float]: ...
    def read(self) -> Sequence[float]: ...
    def clean(self) -> None: ...
    def close(self) -> None: ...


class Entrant(Protocol):
    """Who takes part in the rounds: one contender here, or several at once in other processes."""

    name: str

    def run(self, case: Case, seed: int, verbs: Sequence[Verb]) -> Pass: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass took, a sample for each verb, and how many blocks came back wrong."""

    samples: dict[Verb, Sample]
    blocks: int
    wrong_blocks: int


@dataclass(slots=True)
class CaseResult:
    """Every timed pass of one case, by entrant and verb, in the order of the rounds."""

    case: Case
    samples: dict[tuple[str, Verb], list[Sample]] = field(default_factory=dict)
    blocks_verified: int = 0


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process, ended threads included (clock_getcpuclockid's number on Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def cpu_of_all_s(pids: Iterable[int]) -> float:
    """CPU seconds of several processes."""
    return sum(process_cpu_s(pid) for pid in pids)


def timed(action: Callable[[], Sequence[float]], far_pids: Sequence[int] = ()) -> Sample:
    """Runs `action` once, which returns the seconds of its batches."""
    far_before = cpu_of_all_s(far_pids)
    near_before = time.process_time()
    start = time.perf_counter()
    batches_s = action()
    seconds = time.perf_counter() - start
    return Sample(
        seconds=seconds,
        cpu_near_s=time.process_time() - near_before,
        cpu_far_s=cpu_of_all_s(far_pids) - far_before if far_pids else None,
        batches_s=tuple(batches_s),
    )


def each_timed(batches: Iterable[Callable[[], object]]) -> list[float]:
    """Runs one batch after another; the seconds of each."""
    taken = []
    for batch in batches:
        start = time.perf_counter()
        batch()
        taken.append(time.perf_counter() - start)
    return taken


class InProcess:
    """An entrant that runs its contender in this process, on an arena that others may share."""

    def __init__(self, contender: Contender, arena: Arena) -> None:
        self.name = contender.name
        self._contender = contender
        self._arena = arena

    def run(self, case: Case, seed: int, verbs: Sequence[Verb]) -> Pass:
        order = self._arena.shuffle(case.block_bytes, case.block_count, seed)
        contender = self._contender
        contender.prepare(case, order)
        self._arena.forget()
        samples = {verb: timed(getattr(contender, verb), contender.far_pids) for verb in verbs}
        wrong = self._arena.wrong_blocks(order, case.block_bytes)
        contender.clean()
        return Pass(samples, case.block_count, wrong)

    def close(self) -> None:
        self._contender.close()


def measure(
    case: Case,
    entrants: Sequence[Entrant],
    rounds: int,
    warm_ups: int,
    *,
    seed: int = 1,
    verbs: Sequence[Verb] = MOVES,
    on_round: Callable[[], None] = lambda: None,
) -> CaseResult:
    """`rounds` rounds after the warm-ups, every entrant in each; all bytes are compared.

    Raises `CorruptError` if an entrant brought back other bytes than it was given.
    """
    result = CaseResult(case, {(one.name, verb): [] for one in entrants for verb in verbs})
    for number in range(warm_ups + rounds):
        # Another one begins each time, so that no one always follows the same neighbour's caches.
        first = number % len(entrants)
        for entrant in (*entrants[first:], *entrants[:first]):
            found = entrant.run(case, seed + number, verbs)
            if found.wrong_blocks:
                raise CorruptError(
                    f"{entrant.name}: {found.wrong_blocks} of {found.blocks} blocks of "
                    f"{case.block_bytes} bytes came back with other bytes"
                )
            result.blocks_verified += found.blocks
            if number >= warm_ups:
                for verb, sample in found.samples.items():
                    result.samples[entrant.name, verb].append(sample)
        on_round()
    return result


def load_average() -> float:
    """Of the last minute; 2 busy CPUs give 2."""
    return os.getloadavg()[0]
