"""What each key must hold: the bytes follow from its name and from the version in their front."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.uint8]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_VERSION_BYTES = 8

# Written once, and again with the same bytes after they were lost.
KEPT = "kept"  # never erased, so that a lease on them is seen to hold
LOOSE = "loose"  # erased by anybody
SHARED = "shared"  # written in ranges, by several at once
BULK = "bulk"  # large, so that a writer can be stopped in the middle of its copy
FAR = "far"  # written through the proxy, so that damage on the way is no fault of the store's
# Replaced over and over, each time with another version.
TURN = "turn"
FAR_TURN = "farturn"
OWN = "own"  # one writer each, who knows what is the newest
# Never written by anybody.
ABSENT = "absent"

_REPLACED = (TURN, FAR_TURN, OWN)
_DAMAGEABLE = (FAR, FAR_TURN)


@dataclass(frozen=True, slots=True)
class Key:
    """A name that says how long its value is."""

    family: str
    size: int
    number: int
    writer: int = 0  # of what has one writer: the serial number of that client's process

    @property
    def name(self) -> str:
        return f"{self.family}-{self.writer}-{self.size}-{self.number}"

    @property
    def is_replaced(self) -> bool:
        return self.family in _REPLACED

    @property
    def is_damageable(self) -> bool:
        """Whether its bytes came through the proxy, which may have changed them."""
        return self.family in _DAMAGEABLE


def parse(name: str) -> Key:
    """The key of a name, as the server shows it."""
    family, writer, size, number = name.split("-")
    return Key(family, int(size), int(number), int(writer))


def content(key: Key, version: int = 0) -> Array:
    """The whole value; not to be changed."""
    return _fresh(key, version) if key.is_replaced else _cached(key)


@lru_cache(maxsize=48)
def _cached(key: Key) -> Array:
    return _fresh(key, 0)


def _fresh(key: Key, version: int) -> Array:
    digest = hashlib.blake2b(f"{key.name}@{version}".encode(), digest_size=8).digest()
    words = np.arange(-(-key.size // 8), dtype=np.uint64)
    words *= _STEP
    words += np.uint64(int.from_bytes(digest, "little"))
    words ^= words >> np.uint64(29)
    words *= _MIX
    words[0] = version
    value = words.view(np.uint8)[: key.size]
    value.flags.writeable = False
    return value


def version_of(got: Array) -> int:
    """What the front of a value says."""
    return int.from_bytes(got[:_VERSION_BYTES].tobytes(), "little")


@dataclass(frozen=True, slots=True)
class Difference:
    """Bytes that are not what their key must hold."""

    wrong_bytes: int
    first: int  # the offset of the first of them
    version: int


def difference(key: Key, got: Array, offset: int = 0) -> Difference | None:
    """Compares a range that begins at `offset` with what the key must hold; None: it is that.

    Only a whole value says which version it is.
    """
    version = version_of(got) if key.is_replaced else 0
    expected = content(key, version)[offset : offset + len(got)]
    if np.array_equal(got, expected):
        return None
    wrong = np.flatnonzero(got != expected)
    return Difference(len(wrong), offset + int(wrong[0]), version)
