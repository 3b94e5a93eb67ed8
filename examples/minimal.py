"""Writes and reads KV blocks: `infinistore` in one terminal, `python examples/minimal.py` here."""

from __future__ import annotations

import sys

import numpy as np

import infinistore

BLOCKS, PAGE = 8, 16 * 1024  # eight blocks of 16 Ki numbers: 64 KiB each


def main(url: str) -> None:
    """Writes eight blocks, asks for a prefix of them, and reads them into other memory."""
    # Keys name immutable values: an engine derives them from tokens, so a key says what is there.
    keys = [f"example/block-{index}" for index in range(BLOCKS)]
    blocks = [(key, index * PAGE) for index, key in enumerate(keys)]

    with infinistore.connect(url, namespace="example") as store:
        cache = np.random.default_rng(0).random(BLOCKS * PAGE, dtype=np.float32)
        store.write_cache(cache, blocks, PAGE)  # returns at once; offsets count numbers of `cache`
        store.sync()  # everything is written, or this says what is not

        # How many blocks of a longer prompt are here, from the first on?
        found = store.match_prefix([*keys, "example/not-written"])
        print(f"{found} of {BLOCKS + 1} blocks found over {store.transport}")

        copy = np.zeros_like(cache)
        store.read_cache(copy, blocks[:found], PAGE)
        store.sync()
        print("equal" if np.array_equal(cache, copy) else "DIFFERENT")

        store.read_cache(copy, [("example/not-written", 0)], PAGE)
        try:
            store.sync()
        except infinistore.KeyNotFound as error:
            print(f"a miss, as expected: {error}")
        store.delete(keys)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "infinistore://127.0.0.1:22345")
