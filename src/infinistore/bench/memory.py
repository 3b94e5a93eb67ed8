"""Populated memory for the measurements: a first touch costs more than copying a small block."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.uint64]

STALE_BYTE = 0xEE  # what a target holds before a pass, so that bytes that never arrived show


def private_memory(size: int) -> ByteArray:
    """Anonymous memory, as a caller's tensor has it, every page present."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.uint8)
    array.fill(STALE_BYTE)
    return array


def shared_memory(size: int) -> ByteArray:
    """A memfd's memory, as a server's pool has it, every page present."""
    descriptor = os.memfd_create("infinistore-bench", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        array = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)
    array.fill(STALE_BYTE)
    return array


@dataclass(frozen=True, slots=True)
class Order:
    """Where block i of one round lies, as byte offsets: in the source, the target, between them.

    Every contender of a round gets the same one.
    """

    source: Offsets
    target: Offsets
    middle: Offsets


class Arena:
    """The caller's memory: blocks are written from `source` and read back into `target`."""

    def __init__(self, size: int, seed: int) -> None:
        self.source = private_memory(size)
        self.target = private_memory(size)
        words = self.source[: size // 8 * 8].view(np.uint64)
        words[:] = np.random.default_rng(seed).integers(0, 2**64, words.size, dtype=np.uint64)

    @staticmethod
    def shuffle(block_bytes: int, block_count: int, seed: int) -> Order:
        """A random order of the blocks, the same in every process that has the seed."""
        random = np.random.default_rng(seed)
        offsets = np.arange(block_count, dtype=np.uint64) * np.uint64(block_bytes)
        return Order(*(random.permutation(offsets) for _ in range(3)))

    def forget(self) -> None:
        """Makes the target's bytes stale."""
        self.target.fill(STALE_BYTE)

    def wrong_blocks(self, order: Order, block_bytes: int) -> int:
        """How many blocks of the target are not what the source has."""
        count = order.source.size
        source = self.source[: count * block_bytes].reshape(count, block_bytes)
        target = self.target[: count * block_bytes].reshape(count, block_bytes)
        step = max(1, (4 << 20) // block_bytes)  # gathered copies stay small
        wrong = 0
        for first in range(0, count, step):
            chosen = slice(first, first + step)
            ours = target[order.target[chosen] // np.uint64(block_bytes)]
            wanted = source[order.source[chosen] // np.uint64(block_bytes)]
            wrong += int((ours != wanted).any(axis=1).sum())
        return wrong


def addresses(memory: ByteArray, offsets: Offsets) -> Offsets:
    """The offsets as addresses in this process."""
    result: Offsets = offsets + np.uint64(memory.ctypes.data)
    return result
