"""Memory that reads go to: every byte that they may not touch is watched."""

from __future__ import annotations

import random

import numpy as np

from chaos.content import Array

_GUARD_BYTES = 64


class Destination:
    """One buffer, filled with a canary before each read; blocks in it have guards between them."""

    def __init__(self, size_bytes: int) -> None:
        self.cache: Array = np.zeros(size_bytes, np.uint8)
        self._used = 0
        self._canary = 1

    def place(self, count: int, block_bytes: int, chance: random.Random) -> list[int]:
        """Offsets for so many blocks, any alignment; everything holds the canary then."""
        offsets, at = [], _GUARD_BYTES
        for _ in range(count):
            at += chance.choice((0, 0, 0, 1, 4, 7))
            offsets.append(at)
            at += block_bytes + _GUARD_BYTES
        if at > len(self.cache):
            raise ValueError(f"{count} blocks of {block_bytes} bytes do not fit")
        self._used = max(self._used, at)
        self.fill()
        return offsets

    def fill(self) -> None:
        """Another canary than the last, over all that was ever used."""
        self._canary = self._canary % 255 + 1
        self.cache[: self._used] = self._canary

    def touched(self, begin: int, end: int) -> int:
        """How many bytes of a range are not the canary any more."""
        return int(np.count_nonzero(self.cache[begin:end] != self._canary))

    def touched_beside(self, offsets: list[int], block_bytes: int) -> int:
        """How many bytes outside of the blocks are not the canary any more."""
        begins = [0, *(offset + block_bytes for offset in offsets)]
        ends = [*offsets, self._used]
        return sum(self.touched(begin, end) for begin, end in zip(begins, ends, strict=True))

    def touched_anywhere(self) -> int:
        """How many bytes were written since the last fill()."""
        return self.touched(0, self._used)
