"""Values from one node to another: read by way of a buffer, verified, and written as they were.

A value that is there already is not sent again, and nothing is visible before it is whole. Nor
before it is certain that the source had that very value all the time: a value may be replaced while
its copy is on its way, and who replaces erases, there or here, what came before that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

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
_ABSENT = (Code.MISSING, Code.CORRUPT, Code.ABORTED)


class Moving(Protocol):
    """Of the native server: whether values stayed the same."""

    def begin_move(self, namespace: str, keys: list[bytes], /) -> int: ...
    def end_move(self, move: int, /) -> list[bool]: ...


class Source(NamedTuple):
    """Where values come from: a client of this node, and the server itself."""

    client: AsyncClient
    moving: Moving
    namespace: str


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


async def push(source: Source, target: AsyncClient, values: Sequence[Stored], rate: Rate) -> Moved:
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
    source: Source,
    target: AsyncClient,
    keys: list[bytes],
    size: int,
    buffer: npt.NDArray[np.uint8],
) -> list[Code]:
    """Copies keys of one size, and has those seen that the source still has, unchanged."""
    move = source.moving.begin_move(source.namespace, keys)
    if not move:
        return [Code.OVERLOADED] * len(keys)
    try:
        codes = await _bring(source.client, target, keys, size, buffer)
    finally:
        stayed = source.moving.end_move(move) or [False] * len(keys)  # the server has stopped
    codes = [
        Code.MISSING if code is Code.OK and not has_stayed else code
        for code, has_stayed in zip(codes, stayed, strict=True)
    ]
    if live := [index for index, code in enumerate(codes) if code is Code.OK]:
        part = (size - 1) % min(size, BUFFER_BYTES) + 1  # the last one: of it nothing moves
        blocks = Blocks([keys[index] for index in live], np.zeros(len(live), dtype=np.uint64))
        seen = target.write_cache(
            buffer,
            blocks,
            part,
            unit="bytes",
            value_bytes=size,
            value_offset=size - part,
            on_exists="copy",
        )
        for index, code in zip(live, await _outcomes(seen), strict=True):
            codes[index] = code
    if begun := [key for key, code in zip(keys, codes, strict=True) if code not in _GOOD]:
        await target.abort(begun)  # the other may hold it, or a part of it
    return codes


async def _bring(
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
        write = partial(target.write_cache, on_exists="copy")
        for move in (source.read_cache, write):
            live = [index for index, code in enumerate(codes) if code is Code.OK]
            blocks = Blocks(
                [keys[index] for index in live],
                np.array(live, dtype=np.uint64) * np.uint64(part),
            )
            moving = move(buffer, blocks, part, unit="bytes", value_bytes=size, value_offset=offset)
            for index, code in zip(live, await _outcomes(moving), strict=True):
                codes[index] = code
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
