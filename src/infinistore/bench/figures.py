"""From timed passes to figures: medians with their spread, ratios of neighbours; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verb = Literal["write", "read"]
VERBS: tuple[Verb, ...] = ("write", "read")
BYTES_A_GB = 1e9


@dataclass(frozen=True, slots=True)
class Case:
    """One block size: `block_count` blocks a pass, handed over in batches of `batch_blocks`."""

    block_bytes: int
    block_count: int
    batch_blocks: int

    @property
    def pass_bytes(self) -> int:
        return self.block_bytes * self.block_count


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed pass over a case's blocks. CPU times in seconds; `cpu_far_s` None: not known."""

    seconds: float
    cpu_near_s: float
    cpu_far_s: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of several rounds, and between what they lay."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


def make_case(block_bytes: int, working_set: int, batch_blocks_max: int, batch_bytes: int) -> Case:
    """As many whole blocks as the working set holds, in batches bounded by number and bytes."""
    count = max(1, working_set // block_bytes)
    return Case(
        block_bytes=block_bytes,
        block_count=count,
        batch_blocks=min(count, batch_blocks_max, max(1, batch_bytes // block_bytes)),
    )


def rate(case: Case, samples: Sequence[Sample]) -> Figure:
    """GB/s."""
    return Figure.of(case.pass_bytes / BYTES_A_GB / sample.seconds for sample in samples)


def block_rate(case: Case, samples: Sequence[Sample]) -> Figure:
    """Blocks a second."""
    return Figure.of(case.block_count / sample.seconds for sample in samples)


def cpu_cost(case: Case, samples: Sequence[Sample]) -> tuple[float, float | None]:
    """CPU seconds a GB, at the near and at the far end."""
    gigabytes = case.pass_bytes / BYTES_A_GB
    near = statistics.median(sample.cpu_near_s for sample in samples) / gigabytes
    far = [sample.cpu_far_s for sample in samples if sample.cpu_far_s is not None]
    return near, statistics.median(far) / gigabytes if far else None


def best_limit(limits: Mapping[str, Sequence[Sample]]) -> str:
    """The name of the quickest; ties go to the first. Raises ValueError if there is none."""
    return min(
        limits, key=lambda name: statistics.median(sample.seconds for sample in limits[name])
    )


def ratio(ours: Sequence[Sample], limit: Sequence[Sample]) -> Figure:
    """Our speed as a share of the limit's, round by round, so that a drift of the machine cancels.

    Raises ValueError if the rounds differ in number: they would not be of the same moments.
    """
    if len(ours) != len(limit):
        raise ValueError(f"{len(ours)} rounds of ours stand beside {len(limit)} of the limit")
    return Figure.of(
        theirs.seconds / mine.seconds for mine, theirs in zip(ours, limit, strict=True)
    )
