"""The original's keys, of any length, as keys of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from infinistore.errors import UsageError

KEY_BYTES_MAX = 255
_DIGEST_CHARACTERS = 64


def keys_of(keys: Iterable[str | bytes]) -> list[bytes]:
    """A key that is too long is told by its beginning and its digest. Raises `UsageError`."""
    raw = [key.encode() if isinstance(key, str) else bytes(key) for key in keys]
    if not all(raw):
        raise UsageError("key is empty")
    return [key if len(key) <= KEY_BYTES_MAX else _shortened(key) for key in raw]


def _shortened(key: bytes) -> bytes:
    digest = hashlib.sha256(key).hexdigest().encode()
    return key[: KEY_BYTES_MAX - _DIGEST_CHARACTERS - 1] + b"#" + digest
