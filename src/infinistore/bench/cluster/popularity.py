"""How reads are spread over groups: their parts of all reads, the hottest first. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from infinistore.bench.cluster.readers import Numbers
from infinistore.bench.trace.prompts import Trace

# A group is 64 blocks of 16 tokens; one of a published trace has 512 tokens.
_TRACE_BLOCKS = 2


def zipf(groups: int, exponent: float = 1.0) -> Numbers:
    """Zipf's law."""
    return _parts(np.arange(1, groups + 1) ** -exponent)


def of_trace(trace: Trace) -> Numbers:
    """By a trace: of each prompt the blocks are read that one before had, up to the first new."""
    seen: set[int] = set()
    reads: Counter[int] = Counter()
    for prompt in trace.prompts:
        for index, block in enumerate(prompt):
            if block not in seen:
                break
            reads[prompt[index - index % _TRACE_BLOCKS]] += 1
        seen.update(prompt)
    return _parts(np.array([count for _, count in reads.most_common()]))


def _parts(weights: npt.NDArray[Any]) -> Numbers:
    parts: Numbers = weights.astype(np.float64) / weights.sum()
    return parts
