"""Runs the contenders in turns, so that what the machine does meanwhile falls on all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from infinistore.bench.figures import VERBS, Case, Sample, Verb
from infinistore.errors import CorruptError

if TYPE_CHECKING:
    from infinistore.bench.memory import Arena, Order


class Contender(Protocol):
    """Something that moves a case's blocks away from the arena's source, and back to its target."""

    name: str
    far_pid: int | None

    def prepare(self, case: Case, order: Order) -> None: ...
    def write(self) -> None: ...
    def read(self) -> None: ...
    def clean(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class CaseResult:
    """Every timed pass of one block size, by contender and verb, in the order of the rounds."""

    case: Case
    samples: dict[tuple[str, Verb], list[Sample]] = field(default_factory=dict)
    blocks_verified: int = 0


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process, ended threads included (clock_getcpuclockid's number on Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def timed(action: Callable[[], None], far_pid: int | None) -> Sample:
    """Runs `action` once."""
    far_before = process_cpu_s(far_pid) if far_pid is not None else 0.0
    near_before = time.process_time()
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    return Sample(
        seconds=seconds,
        cpu_near_s=time.process_time() - near_before,
        cpu_far_s=process_cpu_s(far_pid) - far_before if far_pid is not None else None,
    )


def measure(
    case: Case,
    contenders: Sequence[Contender],
    arena: Arena,
    rounds: int,
    warm_ups: int,
    on_round: Callable[[], None] = lambda: None,
) -> CaseResult:
    """`rounds` rounds after the warm-ups, every contender in each; all bytes are compared.

    Raises `CorruptError` if a contender brought back other bytes than it was given.
    """
    result = CaseResult(case)
    for number in range(warm_ups + rounds):
        order = arena.shuffle(case.block_bytes, case.block_count)
        # Another one begins each time, so that no one always follows the same neighbour's caches.
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            samples = _one_pass(case, contender, arena, order)
            result.blocks_verified += case.block_count
            if number >= warm_ups:
                for verb, sample in zip(VERBS, samples, strict=True):
                    result.samples.setdefault((contender.name, verb), []).append(sample)
        on_round()
    return result


def _one_pass(
    case: Case, contender: Contender, arena: Arena, order: Order
) -> tuple[Sample, Sample]:
    contender.prepare(case, order)
    arena.forget()
    written = timed(contender.write, contender.far_pid)
    read = timed(contender.read, contender.far_pid)
    wrong = arena.wrong_blocks(order, case.block_bytes)
    contender.clean()
    if wrong:
        raise CorruptError(
            f"{contender.name}: {wrong} of {case.block_count} blocks of {case.block_bytes} bytes "
            "came back with other bytes"
        )
    return written, read


def load_average() -> float:
    """Of the last minute; 2 busy CPUs give 2."""
    return os.getloadavg()[0]
