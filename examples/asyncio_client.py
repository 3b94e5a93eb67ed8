"""The same verbs, awaited: several writers and readers on one event loop."""

from __future__ import annotations

import asyncio
import sys

import numpy as np

import infinistore

TASKS, BLOCKS, PAGE = 4, 16, 64 * 1024  # bytes


async def one(store: infinistore.AsyncClient, task: int) -> bool:
    """Writes blocks of its own, reads them back, and says whether they came back whole."""
    source = np.random.default_rng(task).integers(0, 256, BLOCKS * PAGE, dtype=np.uint8)
    blocks = [(f"task-{task}/block-{index}", index * PAGE) for index in range(BLOCKS)]
    await store.write_cache(source, blocks, PAGE)
    target = np.zeros_like(source)
    await store.read_cache(target, blocks, PAGE)
    await store.delete([key for key, _ in blocks])
    return bool(np.array_equal(source, target))


async def main(url: str) -> None:
    """Runs the tasks side by side over one connection."""
    store = await infinistore.connect_async(url, namespace="example")
    try:
        results = await asyncio.gather(*(one(store, task) for task in range(TASKS)))
    finally:
        await store.close()
    print(f"{sum(results)} of {TASKS} tasks read what they wrote")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "infinistore://127.0.0.1:22345"))
