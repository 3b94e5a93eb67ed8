"""From timed passes to figures: medians with their spread, ratios of neighbours; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verb = Literal["write", "read", "exists", "match_prefix"]
MOVES: tuple[Verb, ...] = ("write", "read")  # the verbs that move a block's bytes
VERBS: tuple[Verb, ...] = (*MOVES, "exists", "match_prefix")
BYTES_A_GB = 1e9
# An interval that leaves out extremes holds the true median with at least this probability.
INTERVAL_SHARE_MIN = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """One block size: `block_count` blocks a pass, handed over in batches of `batch_blocks`.

    With `waits` each batch is waited for before the next, and its time is told; otherwise whoever
    can has all of them under way at once.
    """

    block_bytes: int
    block_count: int
    batch_blocks: int
    waits: bool = False

    @property
    def pass_bytes(self) -> int:
        return self.block_bytes * self.block_count


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed pass over a case's blocks. CPU times in seconds; `cpu_far_s` None: not known.

    `batches_s`: how long each batch took, where every batch was waited for before the next.
    """

    seconds: float
    cpu_near_s: float
    cpu_far_s: float | None = None
    batches_s: tuple[float, ...] = ()


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

    @classmethod
    def interval_of(cls, values: Iterable[float]) -> Figure:
        """The median in an interval that does without as many extremes as it can.

        The interval is of order statistics, so that nothing is assumed of how values spread: each
        end leaves out k of n values while the probability that the median lies within,
        1 - 2 P(B <= k) for B binomial of n and 1/2, is INTERVAL_SHARE_MIN at least
        (W. J. Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2). Fewer than eight
        values have all of them in it.
        """
        ordered = sorted(values)
        left_out = _extremes_left_out(len(ordered))
        return cls(statistics.median(ordered), ordered[left_out], ordered[-1 - left_out])


def _extremes_left_out(count: int) -> int:
    left_out, outside = 0, 0.0
    while 2 * (left_out + 1) < count:
        outside += 2 * math.comb(count, left_out) / 2**count
        if outside + 2 * math.comb(count, left_out + 1) / 2**count > 1 - INTERVAL_SHARE_MIN:
            break
        left_out += 1
    return left_out


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


def percentile(values: Iterable[float], share: float) -> float:
    """The least value that `share` of all do not exceed (nearest rank). ValueError if none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values, so no percentile")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency(samples: Sequence[Sample], share: float) -> Figure:
    """Seconds of a batch, from its call until it is done: each round's percentile, over rounds."""
    return Figure.of(percentile(sample.batches_s, share) for sample in samples)


def best_limit(limits: Mapping[str, Sequence[Sample]]) -> str:
    """The name of the quickest; ties go to the first. Raises ValueError if there is none."""
    return min(
        limits, key=lambda name: statistics.median(sample.seconds for sample in limits[name])
    )


def ratio(ours: Sequence[Sample], limit: Sequence[Sample]) -> Figure:
    """Our speed as a share of the limit's, round by round, so that a drift of the machine cancels.

    Raises ValueError if the rounds differ in number: they would not be of the same moments.
    """
    return Figure.of(ratios(ours, limit))


def ratios(
    ours: Sequence[Sample],
    theirs: Sequence[Sample],
    seconds_of: Callable[[Sample], float] = lambda sample: sample.seconds,
) -> list[float]:
    """How many times as quick ours was in each round, by `seconds_of`. Raises as `ratio`."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds of ours stand beside {len(theirs)} of the limit")
    return [seconds_of(b) / seconds_of(a) for a, b in zip(ours, theirs, strict=True)]


def batch_p99(sample: Sample) -> float:
    """Seconds that 99 of 100 batches of this round stayed within."""
    return percentile(sample.batches_s, 0.99)
