"""Throughput and latency of the original package's calls: `python benchmarks/original_api.py`.

Starts a server of its own, writes and reads fresh keys in every round, compares all bytes, and
prints the median of the rounds for each transport. Beside it the same through this package's calls.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

import infinistore

LAYERS = 32  # batches that are in flight together, as the original's own benchmark has them
SMALL_BYTES = 4096


def start_server(pool: str) -> tuple[subprocess.Popen[bytes], int]:
    command = [sys.executable, "-m", "infinistore.server", "--port=0", "--admin-port=0"]
    command += [f"--pool={pool}", f"--unix-socket=/tmp/infinistore-bench-{os.getpid()}.sock"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    ready = server.stdout.readline().decode()
    return server, int(ready.split("data=")[1].split()[0].rpartition(":")[2])


def connected(port: int, kind: str, transport: str) -> Any:
    config = infinistore.ClientConfig(
        host_addr="127.0.0.1",
        service_port=port,
        connection_type=kind,
        transport=transport,
        log_level="error",
    )
    connection = infinistore.InfinityConnection(config)
    connection.connect()
    return connection


def keys_and_offsets(total: int, block: int) -> list[list[tuple[str, int]]]:
    run = uuid.uuid4().hex
    blocks = [(f"{run}-{at}", at) for at in range(0, total, block)]
    step = max(1, len(blocks) // LAYERS)
    return [blocks[first : first + step] for first in range(0, len(blocks), step)]


async def by_pointer(connection: Any, source: Any, target: Any, block: int) -> tuple[float, float]:
    """Seconds of a write and of a read of all blocks, in batches that run together."""
    parts = keys_and_offsets(source.nbytes, block)
    pointers = [int(source.ctypes.data), int(target.ctypes.data)]
    for pointer in pointers:
        connection.register_mr(pointer, source.nbytes)
    calls = (connection.rdma_write_cache_async, connection.rdma_read_cache_async)
    seconds = []
    for call, pointer in zip(calls, pointers, strict=True):
        began = time.perf_counter()
        await asyncio.gather(*(call(part, block, pointer) for part in parts))
        seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1]


def by_client(client: Any, source: Any, target: Any, block: int) -> tuple[float, float]:
    """The same through write_cache() and read_cache()."""
    parts = keys_and_offsets(source.nbytes, block)
    seconds = []
    for call, memory in ((client.write_cache, source), (client.read_cache, target)):
        began = time.perf_counter()
        for part in parts:
            call(memory, part, block, unit="bytes")
        client.sync()
        seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1]


def rate(seconds: list[tuple[float, float]], size: int) -> str:
    medians = [statistics.median(column) for column in zip(*seconds, strict=True)]
    return " / ".join(f"{size / median / 1e9:.2f}" for median in medians)


def latency(call: Callable[[], object], count: int = 2000) -> float:
    """Median microseconds."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def measure(port: int, transport: str, size: int, block: int, rounds: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    target = np.empty_like(source)
    original = connected(port, infinistore.TYPE_RDMA, transport)
    ours = infinistore.connect(f"infinistore://127.0.0.1:{port}", "ours", transport=transport)
    pairs: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds + 1):  # the first warms the pool and the caches
        target[:] = 0
        pairs[0].append(asyncio.run(by_pointer(original, source, target, block)))
        assert np.array_equal(source, target)
        target[:] = 0
        pairs[1].append(by_client(ours, source, target, block))
        assert np.array_equal(source, target)
    for name, pair in zip(("original's calls", "this package's"), pairs, strict=True):
        print(f"{transport}  {block // 1024:5} KiB  {name:18} {rate(pair[1:], size)} GB/s")
    single = connected(port, infinistore.TYPE_TCP, transport)
    single.tcp_write_cache("small", int(source.ctypes.data), SMALL_BYTES)
    answers = {
        "tcp_read_cache, 4 KiB": lambda: single.tcp_read_cache("small"),
        "tcp_read_cache, missing": lambda: single.tcp_read_cache("gone"),
        "check_exist": lambda: single.check_exist("small"),
    }
    for name, call in answers.items():
        print(f"{transport}  {name:26} {latency(call):.0f} us")
    for each in (original, single, ours):
        each.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=128, help="MiB")
    parser.add_argument("--block", type=int, nargs="+", default=[32, 128, 2048], help="KiB")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    server, port = start_server("1GiB")
    try:
        for transport in ("shm", "tcp"):
            for block in given.block:
                measure(port, transport, given.size << 20, block << 10, given.rounds)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
