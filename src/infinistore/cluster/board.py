"""Where nodes keep their notes: each writes its own on its own server, and reads the others'."""

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
