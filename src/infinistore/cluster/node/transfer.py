"""Values from one node to another: read by way of a buffer, verified, and written as they were.

A value that is there already is not sent again, and nothing is visible before it is whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from infinistore.client.aio import AsyncClient
from infinistore.client.regions import Blocks
from infinistore.client.results import Outcomes
from infinistore.cluster.node.rate import Rate
from infinistore.errors import Code, InfiniStoreError, LinkError

BUFFER_BYTES = 4 << 20
BATCH_KEYS_MAX = 1024


_GOOD = (Code.OK, Code.EXISTS)
_ABSENT = (Code.MISSING, Code.CORRUPT)


class Stored(NamedTuple):
    """One value of a namespace."""

    key: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Moved:
    """What a push did."""

    there: tuple[bytes, ...] = ()  # keys that the other had already
    sent: tuple[bytes, ...] = ()  # and those that it has by this push
    sent_bytes: int = 0
    absent: int = 0  # evicted or erased here meanwhile
    refused: int = 0  # by the other: full, or busy


def batches(values: Iterable[Stored], bytes_max: int = BUFFER_BYTES) -> list[list[Stored]]:
    """Values of one size each, as many as fit a buffer; a larger one stands alone."""
    made = []
    for size, same in groupby(
        sorted((v for v in values if v.size), key=lambda v: v.size), lambda v: v.size
    ):
        row = list(same)
        count = max(1, min(BATCH_KEYS_MAX, bytes_max // max(1, size)))
        made += [row[at : at + count] for at in range(0, len(row), count)]
    return made


async def push(
    source: AsyncClient, target: AsyncClient, values: Sequence[Stored], rate: Rate
) -> Moved:
    """Copies values. Raises `InfiniStoreError` if a node cannot be reached."""
    buffer = np.empty(BUFFER_BYTES, dtype=np.uint8)
    there: list[bytes] = []
    sent: list[bytes] = []
    sent_bytes = absent = refused = 0
    for batch in batches(values):
        size = batch[0].size
        known = await target.exists([value.key for value in batch])  # these cost no bytes
        there += [value.key for value, is_known in zip(batch, known, strict=True) if is_known]
        keys = [value.key for value, is_known in zip(batch, known, strict=True) if not is_known]
        if not keys:
            continue
        await rate.spend(size * len(keys))
        codes = await _copy(source, target, keys, size, buffer)
        there += [key for key, code in zip(keys, codes, strict=True) if code is Code.EXISTS]
        copied = [key for key, code in zip(keys, codes, strict=True) if code is Code.OK]
        sent += copied
        sent_bytes += size * len(copied)
        absent += sum(code in _ABSENT for code in codes)
        refused += sum(code not in _GOOD and code not in _ABSENT for code in codes)
    return Moved(tuple(there), tuple(sent), sent_bytes, absent, refused)


async def _copy(
    source: AsyncClient,
    target: AsyncClient,
    keys: list[bytes],
    size: int,
    buffer: npt.NDArray[np.uint8],
) -> list[Code]:
    """Reads and writes what fits the buffer at a time, for keys of one size."""
    codes = [Code.OK] * len(keys)
    step = min(size, BUFFER_BYTES)
    for offset in range(0, size, step):
        part = min(step, size - offset)
        for move in (source.read_cache, target.write_cache):
            live = [index for index, code in enumerate(codes) if code is Code.OK]
            blocks = Blocks(
                [keys[index] for index in live],
                np.array(live, dtype=np.uint64) * np.uint64(part),
            )
            moving = move(buffer, blocks, part, unit="bytes", value_bytes=size, value_offset=offset)
            for index, code in zip(live, await _outcomes(moving), strict=True):
                codes[index] = code
    begun = [key for key, code in zip(keys, codes, strict=True) if code not in _GOOD]
    if begun and size > step:  # the other holds a part of them
        await target.abort(begun)
    return codes


async def _outcomes(moving: Awaitable[Outcomes]) -> Sequence[Code]:
    """Key by key, unless the link itself failed."""
    try:
        return await moving
    except LinkError:
        raise
    except InfiniStoreError as error:
        if error.outcomes is None:
            raise
        return error.outcomes
