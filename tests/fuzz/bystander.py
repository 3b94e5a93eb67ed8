"""A client that keeps the rules while others break them: writes, reads, and checks every byte.

Says "ready" after its first turn, runs until its standard input ends, then prints what it did as
JSON. What it may be told is ok, a miss (its values are evicted like all others) and that there is
no room now; anything else ends it.

    python tests/fuzz/bystander.py URL
"""

from __future__ import annotations

import json
import select
import sys
import time
import zlib
from typing import Any

import numpy as np

import infinistore
from infinistore import Code

PAGE = 8192
KEYS = 16
PATIENCE_S = 60.0  # the machine may be busy: a hang is found, slowness is not
PAUSE_S = 0.02  # it shall be there all the time, not take the time of the attackers
WRITTEN = {Code.OK, Code.EXISTS, Code.OUT_OF_MEMORY, Code.OVERLOADED}
READ = {Code.OK, Code.MISSING}


def value(key: str) -> Any:
    """The bytes that belong under a key: nothing but them is right."""
    return np.random.default_rng(zlib.crc32(key.encode())).integers(0, 256, PAGE, dtype=np.uint8)


def only(outcomes: Any, allowed: set[Code], verb: str) -> None:
    strange = set(outcomes) - allowed
    if strange:
        raise AssertionError(f"a {verb} ended as {strange}")


def one_turn(turn: int, writer: Any, reader: Any, counts: dict[str, int]) -> None:
    """Writes keys by one client, reads them by the other, and deletes them."""
    keys = [f"{turn}-{index}" for index in range(KEYS)]
    source = np.concatenate([value(key) for key in keys])
    blocks = [(key, index * PAGE) for index, key in enumerate(keys)]
    written = writer.write_cache(source, blocks, PAGE).wait()
    only(written, WRITTEN, "write")
    target = np.zeros_like(source)
    read = reader.read_cache(target, blocks, PAGE).wait()
    only(read, READ, "read")
    for index, (put, got) in enumerate(zip(written, read, strict=True)):
        part = slice(index * PAGE, (index + 1) * PAGE)
        expected = source[part] if got == Code.OK else np.zeros(PAGE, dtype=np.uint8)
        if not np.array_equal(target[part], expected):
            raise AssertionError(f"wrong bytes under {keys[index]}")
        counts["written"] += put == Code.OK
        counts["read"] += got == Code.OK
        counts["refused"] += put in (Code.OUT_OF_MEMORY, Code.OVERLOADED)
        counts["missed"] += put == Code.OK and got != Code.OK
    reader.delete(keys)


def main() -> None:
    url = sys.argv[1]
    settings: dict[str, Any] = {"namespace": "bystander", "progress_timeout_s": PATIENCE_S}
    counts = dict.fromkeys(("written", "read", "refused", "missed"), 0)
    with (
        infinistore.connect(url, transport="shm", **settings) as near,
        infinistore.connect(url, transport="tcp", **settings) as far,
    ):
        turn = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            clients = (near, far) if turn % 2 else (far, near)
            one_turn(turn, *clients, counts)
            turn += 1
            if turn == 1:
                print("ready", flush=True)
            time.sleep(PAUSE_S)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
