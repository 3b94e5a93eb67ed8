"""Shared memory in which each caller says what it is doing, so that others see it hang or go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

VERBS = ("connect", "write", "read", "exists", "match", "lookup", "delete", "abort", "close")
_SLOT = np.dtype(
    [
        ("began_at", "f8"),  # of the call under way; 0: none is
        ("patience_s", "f8"),  # what it was allowed to wait by its own wish
        ("verb", "i8"),
        ("ended_at", "f8"),  # of the last call that ended
        ("good_at", "f8"),  # of the last call that the server answered
        ("calls", "i8"),
        ("rests", "i8"),  # has seen the wish to rest, and holds nothing
        ("unused", "f8"),
    ]
)


class Board:
    """A file of slots, one a caller; slot 0 holds the wish that all callers rest."""

    def __init__(self, path: Path, slots: int | None = None) -> None:
        if slots is not None:
            path.write_bytes(bytes(_SLOT.itemsize * (slots + 1)))
        self._all: Any = np.memmap(path, _SLOT, "r+")

    @property
    def slots(self) -> int:
        return len(self._all) - 1

    def slot(self, index: int) -> Slot:
        return Slot(self._all[index + 1 : index + 2])

    def ask_to_rest(self, rests: bool) -> None:
        self._all["rests"][0] = int(rests)

    @property
    def is_rest_asked(self) -> bool:
        return bool(self._all["rests"][0])


class Slot:
    """What one caller says of itself. Times are of the monotonic clock, one for all processes."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def begin(self, verb: str, patience_s: float = 0.0) -> None:
        self._row["verb"] = VERBS.index(verb)
        self._row["patience_s"] = patience_s
        self._row["began_at"] = time.monotonic()

    def end(self, *, is_good: bool) -> None:
        now = time.monotonic()
        self._row["ended_at"] = now
        self._row["began_at"] = 0
        self._row["calls"] += 1
        if is_good:
            self._row["good_at"] = now

    def clear(self) -> None:
        """For the next process that has this slot."""
        self._row[...] = 0

    def rest(self, rests: bool) -> None:
        self._row["rests"] = int(rests)

    @property
    def rests(self) -> bool:
        return bool(self._row["rests"][0])

    @property
    def verb(self) -> str:
        return VERBS[int(self._row["verb"][0])]

    @property
    def began_at(self) -> float:
        return float(self._row["began_at"][0])

    @property
    def patience_s(self) -> float:
        return float(self._row["patience_s"][0])

    @property
    def ended_at(self) -> float:
        return float(self._row["ended_at"][0])

    @property
    def good_at(self) -> float:
        return float(self._row["good_at"][0])
