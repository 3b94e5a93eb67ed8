"""What nodes tell each other, as values on their servers: their notes, and orders to leave."""

from __future__ import annotations

import numpy as np

from infinistore.client.aio import AsyncClient
from infinistore.cluster.view import (
    NOTE_KEY,
    NOTE_PAGE_BYTES,
    Note,
    decode_note,
    encode_note,
    note_bytes,
)
from infinistore.errors import KeyNotFound, SizeMismatchError

DRAIN_KEY = b"drain"
_TRIES = 3  # a note may be replaced between the two reads of a long one


async def publish(client: AsyncClient, note: Note) -> None:
    """Replaces the note. `client` is of their namespace. Raises `InfiniStoreError`."""
    value = np.frombuffer(encode_note(note), dtype=np.uint8)
    await client.write_cache(value, [(NOTE_KEY, 0)], len(value), unit="bytes", on_exists="replace")


async def read_note(client: AsyncClient) -> Note | None:
    """None: there is none yet. Raises `InfiniStoreError`; what is no note is `ConfigError`."""
    for _ in range(_TRIES):
        page = np.empty(NOTE_PAGE_BYTES, dtype=np.uint8)
        try:
            await client.read_cache(page, [(NOTE_KEY, 0)], len(page), unit="bytes")
            size = note_bytes(page.tobytes())
            if size > len(page):
                page = np.empty(size, dtype=np.uint8)
                await client.read_cache(page, [(NOTE_KEY, 0)], size, unit="bytes", value_bytes=size)
            return decode_note(page.tobytes())
        except SizeMismatchError:
            continue
        except KeyNotFound:
            break
    return None


async def order_drain(client: AsyncClient) -> None:
    """Has the node of that server move everything to the others, and stop."""
    await client.write_cache(np.ones(1, dtype=np.uint8), [(DRAIN_KEY, 0)], 1, unit="bytes")


async def is_told_to_drain(own: AsyncClient) -> bool:
    return (await own.exists([DRAIN_KEY]))[0]
