"""Replays traces through policies: what part of the blocks would have been hits.

A prompt looks its blocks up in prefix order. Hits are the blocks before the first that is missing:
a block after it is of no use to an engine. Then all of the prompt's blocks are used: what is
missing is put.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from infinistore import _native
from infinistore.bench.trace.prompts import Trace
from infinistore.bench.trace.published import PUBLISHED, Lru, Policy

BLOCK_BYTES = 4096  # of the pool; a block's bytes are never touched
SHARD_COUNT = 32  # as a server's
OPTIMUM = "optimum"
LRU = "LRU"


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one capacity."""

    trace: str
    fraction: float  # of the trace's distinct blocks
    policy: str
    is_store: bool  # the store itself, not a model of a policy in Python
    hit_rate: float
    cpu_ns: float  # a block, of the whole replay


def replay_policy(trace: Trace, policy: Policy) -> int:
    """The hits of a policy in Python."""
    hits = 0
    for prompt in trace.prompts:
        for block in prompt:
            if block not in policy:
                break
            hits += 1
        for block in prompt:
            policy.use(block)
    return hits


def replay_store(
    trace: Trace,
    capacity: int,
    eviction: str,
    shard_count: int = SHARD_COUNT,
    reuse: Mapping[str, float] | None = None,
) -> int:
    """The hits of the store itself, in a pool of so many blocks.

    `reuse`: numbers of that policy in place of its own, by the names of `_native.reuse_tuning()`.
    """
    store = _native.TraceStore(capacity * BLOCK_BYTES, eviction, shard_count, reuse or {})
    return sum(store.prompt(prompt, BLOCK_BYTES) for prompt in trace.prompts)


def replay_optimum(trace: Trace, capacity: int) -> int:
    """The hits of one who knows the future: drops, or does not put, what is used last (Belady)."""
    uses = [block for prompt in trace.prompts for block in prompt]
    never = len(uses)
    next_uses = [never] * len(uses)
    seen: dict[int, int] = {}
    for at in range(len(uses) - 1, -1, -1):
        next_uses[at] = seen.get(uses[at], never)
        seen[uses[at]] = at
    held: dict[int, int] = {}  # a block's next use
    latest: list[tuple[int, int]] = []  # a heap; some are out of date
    hits = 0
    for at, block in enumerate(uses):
        hits += block in held
        held.pop(block, None)
        if next_uses[at] == never:
            continue
        held[block] = next_uses[at]
        heapq.heappush(latest, (-next_uses[at], block))
        while len(held) > capacity:
            next_use, last = heapq.heappop(latest)
            if held.get(last) == -next_use:
                del held[last]
    return hits


def policy_names() -> list[str]:
    """The store's own first, the optimum last."""
    return [*_native.eviction_policies(), LRU, *PUBLISHED, OPTIMUM]


def hits_of(trace: Trace, capacity: int, policy: str) -> int:
    """The hits of a policy by its name."""
    if policy in _native.eviction_policies():
        return replay_store(trace, capacity, policy)
    if policy == OPTIMUM:
        return replay_optimum(trace, capacity)
    return replay_policy(trace, Lru(capacity) if policy == LRU else PUBLISHED[policy](capacity))


def replay(
    traces: Sequence[Trace], fractions: Sequence[float], policies: Sequence[str] = ()
) -> Iterator[Point]:
    """All points, policy by policy within a capacity."""
    for trace in traces:
        for fraction in fractions:
            for name in policies or policy_names():
                start = time.process_time()
                hits = hits_of(trace, trace.capacity(fraction), name)
                taken = time.process_time() - start
                yield Point(
                    trace=trace.name,
                    fraction=fraction,
                    policy=name,
                    is_store=name in _native.eviction_policies(),
                    hit_rate=hits / trace.block_count,
                    cpu_ns=taken * 1e9 / trace.block_count,
                )
