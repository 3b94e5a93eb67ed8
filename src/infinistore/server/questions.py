"""What an operator asks a server: why keys are missing, who lives here, what a larger pool gives.

Each takes the native server and a query or body, and answers with what JSON can say. All are
bounded. They raise `ConfigError` for what is no question.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from infinistore.cluster.placement import group_of
from infinistore.errors import ConfigError
from infinistore.server.native import NativeServer
from infinistore.units import parse_bytes

EXPLAINED_KEYS_MAX = 1024  # as in core/base/limits.h
KEY_BYTES_MAX = 255
NAMESPACES_DEFAULT, NAMESPACES_MAX = 100, 10_000
HOTTEST_DEFAULT, HOTTEST_MAX, HOTTEST_KEYS = 20, 1000, 1000
SIZES_MAX = 64
# Pools of the curve, in parts of the one that there is.
SHARES = (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)


async def explain(server: NativeServer, body: bytes) -> dict[str, Any]:
    """What became of each key of a namespace."""
    space, keys = read_explain(body)
    answers = await asyncio.to_thread(server.explain, space, keys)
    return {"namespace": space, "answers": [_texts(answer) for answer in answers]}


def read_explain(body: bytes) -> tuple[str, list[bytes]]:
    """The namespace and the keys of a request; an empty one asks for none."""
    try:
        asked = json.loads(body or b"{}")
        space, texts, hexes = (
            asked.get(name, empty)
            for name, empty in (("namespace", "default"), ("keys", []), ("hex_keys", []))
        )
        keys = [text.encode() for text in texts] + [bytes.fromhex(text) for text in hexes]
        space.encode()
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(
            'the body is not {"namespace": TEXT, "keys": [TEXT, ...], "hex_keys": [HEX, ...]}: '
            f"{error}"
        ) from None
    if len(keys) > EXPLAINED_KEYS_MAX:
        raise ConfigError(f"{len(keys)} keys; ask for at most {EXPLAINED_KEYS_MAX} at a time")
    wrong = next((key for key in keys if not 0 < len(key) <= KEY_BYTES_MAX), None)
    if wrong is not None:
        raise ConfigError(f"a key of {len(wrong)} bytes; keys have 1 to {KEY_BYTES_MAX}")
    return space, keys


async def namespaces(server: NativeServer, query: Mapping[str, str]) -> dict[str, Any]:
    """The largest namespaces; `count` is of all that were ever used."""
    limit = _count(query, NAMESPACES_DEFAULT, NAMESPACES_MAX)
    spaces = await asyncio.to_thread(server.namespaces)
    # The nameless one is there from the start: shown once it is used.
    spaces = [space for space in spaces if space["keys"] or space["idle_s"] is not None]
    spaces.sort(key=lambda space: (-space["bytes"], space["namespace"]))
    return {"count": len(spaces), "namespaces": [_texts(space) for space in spaces[:limit]]}


async def hottest(server: NativeServer, query: Mapping[str, str]) -> dict[str, Any]:
    """What is read most: groups of keys, which are prefixes of prompts, the hottest first."""
    limit = _count(query, HOTTEST_DEFAULT, HOTTEST_MAX)
    groups: dict[tuple[bytes, bytes], dict[str, Any]] = {}
    for space, key, _, bytes_per_s in await asyncio.to_thread(server.hottest, HOTTEST_KEYS):
        about = {"namespace": space, "key": key, "keys": 0, "bytes_per_s": 0.0}
        group = groups.setdefault((space, group_of(key)), about)  # named by its hottest key
        group["keys"] += 1
        group["bytes_per_s"] += bytes_per_s
    rows = sorted(groups.values(), key=lambda group: -float(group["bytes_per_s"]))
    return {"hottest": [_texts(row) for row in rows[:limit]]}


async def what_if(server: NativeServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Hit rates that LRU pools of other sizes would have had of what was asked for lately."""
    capacity = server.snapshot().get("capacity_bytes", 0)
    sizes = [int(capacity * share) for share in SHARES]
    if "sizes" in query:
        words = query["sizes"].split(",")
        if len(words) > SIZES_MAX:
            raise ConfigError(f"{len(words)} sizes; ask for at most {SIZES_MAX} at a time")
        sizes = [parse_bytes(word) for word in words]
    curve = server.hit_curve([min(size, 2**63) for size in sizes])
    known = [size <= curve["bytes_max"] for size in sizes]
    points = [
        {"pool_bytes": size, "hit_rate": round(rate, 4) if is_known else None}
        for size, rate, is_known in zip(sizes, curve["hit_rates"], known, strict=True)
    ]
    return {
        "capacity_bytes": capacity,
        "asked": round(curve["asked"]),
        "sampled_share": curve["sampled_share"],
        "points": points,
    }


def _count(query: Mapping[str, str], default: int, most: int) -> int:
    limit = query.get("limit", str(default))
    if not limit.isdecimal() or not 0 < int(limit) <= most:
        raise ConfigError(f"limit = {limit!r}; give a number of 1 to {most}")
    return int(limit)


def _texts(answer: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no bytes: names are shown as text where they are text, else escaped."""

    def shown(item: Any) -> Any:
        if isinstance(item, list):
            return [shown(each) for each in item]
        return item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else item

    return {name: shown(item) for name, item in answer.items()}
