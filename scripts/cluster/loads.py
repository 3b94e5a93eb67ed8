"""What clients ask for: chains of blocks, by Zipf's law or as a trace has them; pure and seeded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

# infinistore.keys groups 64 blocks: of 64 tokens each that is eight of the trace's blocks of 512.
TRACE_GROUP = 8
Bytes = npt.NDArray[np.uint8]


def zipf_chains(
    seed: int, hot: int, chains: int, blocks: int, exponent: float = 1.0
) -> Iterator[list[bytes]]:
    """Chains of so many blocks for ever; `hot` says which of them are the frequent ones."""
    weights = 1.0 / np.arange(1, chains + 1) ** exponent
    ranks = np.random.default_rng(hot).permutation(chains)
    random = np.random.default_rng([seed, hot])
    while True:
        for rank in random.choice(chains, 256, p=weights / weights.sum()):
            chain = int(ranks[rank])
            yield [b"{zipf-%d}%d" % (chain, block) for block in range(blocks)]


def trace_chains(path: Path, seed: int) -> Iterator[list[bytes]]:
    """The requests of a trace in its order for ever; each client begins elsewhere."""
    with path.open() as lines:
        requests = [json.loads(line)["hash_ids"] for line in lines]
    at = seed * 331 % len(requests)
    while True:
        yield keys_of(requests[at])
        at = (at + 1) % len(requests)


def keys_of(hash_ids: Sequence[int]) -> list[bytes]:
    """A chain's keys; each group of blocks is tagged by its first."""
    return [
        b"{trace-%d}%d" % (hash_ids[index - index % TRACE_GROUP], block)
        for index, block in enumerate(hash_ids)
    ]


class Contents:
    """What each key must hold: one pattern, shifted by the key."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pattern = np.random.default_rng(9).integers(0, 256, 2 * size, dtype=np.uint8)

    def of(self, key: bytes) -> Bytes:
        start = int.from_bytes(key[-8:], "little") * 0x9E3779B97F4A7C15 % 2**64 % self.size
        return self._pattern[start : start + self.size]
