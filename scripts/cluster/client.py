"""One client process of a proof: asks for chains through the cluster and checks every byte.

It reports a line of JSON each half second. Orders come as lines on stdin: a number is another hot
set, an end of the input the end of the work.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import infinistore
from cluster.loads import Contents, trace_chains, zipf_chains

REPORT_S = 0.5


class Worker:
    """Reads a chain; what is missing it writes, as an engine that has computed it would."""

    def __init__(self, store: infinistore.Client, contents: Contents, blocks_max: int) -> None:
        self._store = store
        self._contents = contents
        self._cache = np.zeros((blocks_max, contents.size), dtype=np.uint8)
        self.fresh: dict[str, Any] = {}
        self.clear()

    def clear(self) -> None:
        self.fresh = {"requests": [], "hits": 0, "misses": 0, "wrong": 0, "errors": []}

    def request(self, chain: list[bytes]) -> None:
        """Notes [group, begin, duration, misses]."""
        chain = chain[: len(self._cache)]
        began = time.monotonic()
        missing = self._read(chain)
        took = time.monotonic() - began
        group = chain[0].partition(b"}")[0][1:].decode()
        self.fresh["requests"].append([group, round(began, 4), round(took, 5), len(missing)])
        self.fresh["hits"] += len(chain) - len(missing)
        self.fresh["misses"] += len(missing)
        if missing:
            self._write([chain[index] for index in missing])

    def _read(self, chain: list[bytes]) -> list[int]:
        size = self._contents.size
        blocks = [(key, index * size) for index, key in enumerate(chain)]
        batch = self._store.read_cache(self._cache, blocks, size, unit="bytes")
        outcomes = batch.wait()
        missing = set(outcomes.missing)
        if failed := outcomes.failed:
            self._fail("read", batch)
        for index, key in enumerate(chain):
            if index not in missing and index not in failed:
                is_right = np.array_equal(self._cache[index], self._contents.of(key))
                self.fresh["wrong"] += not is_right
        return sorted(missing | set(failed))

    def _write(self, keys: list[bytes]) -> None:
        size = self._contents.size
        values = np.concatenate([self._contents.of(key) for key in keys])
        blocks = [(key, index * size) for index, key in enumerate(keys)]
        batch = self._store.write_cache(values, blocks, size, unit="bytes")
        if batch.wait().failed:
            self._fail("write", batch)

    def _fail(self, verb: str, batch: infinistore.Batch) -> None:
        self.fresh["errors"].append([verb, str(batch.error())[:200], round(time.monotonic(), 3)])


def _orders() -> queue.SimpleQueue[str | None]:
    orders: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put(None)

    threading.Thread(target=listen, daemon=True).start()
    return orders


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--size", type=int, default=64 << 10)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--trace", type=Path)
    given = parser.parse_args()

    def chains(hot: int) -> Any:
        if given.trace:
            return trace_chains(given.trace, given.seed)
        return zipf_chains(given.seed, hot, given.chains, given.blocks)

    orders = _orders()
    blocks_max = 64 if given.trace else given.blocks
    with infinistore.connect(given.url, "proof", transport="tcp") as store:
        worker = Worker(store, Contents(given.size), blocks_max)
        print(json.dumps({"ready": os.getpid()}), flush=True)
        source = chains(0)
        reported = time.monotonic()
        while True:
            while not orders.empty():
                order = orders.get()
                if order is None:
                    return
                source = chains(int(order))
            worker.request(next(source))
            if given.pause_s:
                time.sleep(given.pause_s)
            if (now := time.monotonic()) - reported >= REPORT_S:
                print(json.dumps(worker.fresh), flush=True)
                worker.clear()
                reported = now


if __name__ == "__main__":
    main()
