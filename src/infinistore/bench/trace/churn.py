"""How much of a pool is usable: values of mixed sizes put into a full store."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from infinistore import _native

USABLE_TARGET = 0.96
POOL_BYTES = 1 << 30
PUTS = 30_000
CHECK_EVERY = 500  # puts; a look at what is held costs a lookup for each value
KIB = 1024

Sizes = Callable[[random.Random], int]


def log_uniform(random_: random.Random) -> int:
    """4 KiB to 4 MiB, each octave as often as any other."""
    return round(math.exp(random_.uniform(math.log(4 * KIB), math.log(4096 * KIB))))


def kv_like(random_: random.Random) -> int:
    """Blocks of several models, a layer's and whole ones, and now and then an odd size."""
    if random_.random() < 0.2:
        return random_.randrange(16 * KIB, 2048 * KIB)
    return KIB * random_.choice((32, 64, 96, 160, 256, 512, 896, 1536, 2048, 3072))


MIXES: dict[str, Sizes] = {"log-uniform 4 KiB to 4 MiB": log_uniform, "sizes of KV blocks": kv_like}


@dataclass(frozen=True, slots=True)
class Churn:
    """One mix of sizes."""

    mix: str
    usable: float  # the least part of the pool that held values when a put had to evict
    scattered: int  # puts that had to evict although enough was free
    refused: int
    puts: int


def churn(mix: str, pool_bytes: int = POOL_BYTES, puts: int = PUTS, seed: int = 1) -> Churn:
    """Puts values of a mix, the oldest leaving, and looks at the pool whenever one must leave."""
    random_ = random.Random(seed)
    sizes = MIXES[mix]
    store = _native.TraceStore(pool_bytes, "lru", 32)
    held: dict[int, int] = {}
    usable, scattered, refused = 1.0, 0, 0
    is_full = False
    for number in range(puts):
        size = sizes(random_)
        free, evictions = store.free_and_evictions()
        refused += store.put(number, size) != 0
        has_evicted = store.free_and_evictions()[1] > evictions
        is_full |= has_evicted
        scattered += has_evicted and free >= -(-size // 4096) * 4096
        if has_evicted and is_full:
            # What was held just before: bytes of pages; of values when they are looked at.
            usable = min(usable, 1 - free / pool_bytes)
        held[number] = size
        if is_full and number % CHECK_EVERY == 0:
            held = {block: size for block, size in held.items() if store.exists(block)}
            pages = pool_bytes - store.free_and_evictions()[0]
            waste = pages - sum(held.values())
            usable = min(usable, 1 - (free + waste) / pool_bytes) if has_evicted else usable
    return Churn(mix, usable, scattered, refused, puts)
