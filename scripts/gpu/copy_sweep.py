"""How fast blocks go between a GPU and the pool of another process, beside one big pinned copy.

    python scripts/gpu/copy_sweep.py [--json FILE] [--rounds N] [--only alone|shm|tcp]

Needs a CUDA GPU, PyTorch, and 4 GiB of shared memory. The kernel alone is measured against memory
of another process; then `write_cache` and `read_cache` against a server, seals and all. Every round
times each case once, in turn with the limit; figures are medians. Exit status 1 if one is short.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import infinistore
from infinistore import _native

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from server_process import ServerProcess

BLOCKS = (4096, 16384, 65536, 262144, 1048576)
BATCH = 256 << 20
HOST = 1 << 30
ALONE_OFF = {True: 0.93, False: 0.91}  # to the host, to the device
ALONE_ON = 0.88
WHOLE = 0.85
SHAPE = (16, 512)  # thread blocks, and threads of each, as the product launches them


@dataclass
class Line:
    """One figure beside its target."""

    what: str
    block: int
    gb_s: float
    limit_gb_s: float
    ratio: float
    target: float | None

    @property
    def is_short(self) -> bool:
        """Whether it misses its target."""
        return self.target is not None and self.ratio < self.target

    def text(self) -> str:
        """One row."""
        verdict = "" if self.target is None else ("short" if self.is_short else "ok")
        target = "" if self.target is None else f">= {self.target:.2f}"
        return (
            f"{self.what:<34} {self.block >> 10:>5} KiB {self.gb_s:7.2f} GB/s of "
            f"{self.limit_gb_s:6.2f}  {self.ratio:5.3f} {target:>8} {verdict}"
        )


def hold_memory(ready: Any, until: Any) -> None:
    """Another process with memory to share, as a server has it."""
    fd = os.memfd_create("gpu-copy-sweep")
    os.ftruncate(fd, HOST)
    view = np.frombuffer(mmap.mmap(fd, HOST), dtype=np.uint8)
    view[::4096] = 1
    ready.put((os.getpid(), fd))
    until.wait()


class Limit:
    """One copy of a batch between pinned memory and the GPU, as PyTorch does it."""

    def __init__(self) -> None:
        self._host = torch.empty(BATCH, dtype=torch.uint8, pin_memory=True)
        self._device = torch.empty(BATCH, dtype=torch.uint8, device="cuda")

    def run(self, to_host: bool) -> float:
        """Seconds."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        if to_host:
            self._host.copy_(self._device, non_blocking=True)
        else:
            self._device.copy_(self._host, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - began


def scattered(block: int, room: int, seed: int) -> np.ndarray:
    """Offsets of a batch's blocks, anywhere in `room`."""
    random = np.random.default_rng(seed)
    places = random.permutation(room // block)[: BATCH // block]
    return places.astype(np.uint64) * np.uint64(block)


def alone(rounds: int, limit: Limit) -> list[Line]:
    """The kernel against another process' memory."""
    context = multiprocessing.get_context("spawn")
    ready, until = context.Queue(), context.Event()
    holder = context.Process(target=hold_memory, args=(ready, until))
    holder.start()
    pid, fd = ready.get(timeout=120)
    with open(f"/proc/{pid}/fd/{fd}", "r+b") as file:
        host = np.frombuffer(mmap.mmap(file.fileno(), HOST), dtype=np.uint8)
    device = torch.randint(0, 256, (1 << 30,), dtype=torch.uint8, device="cuda")
    loop = _native.gpu_copy_loop(0, host)
    lines = []
    for to_host in (True, False):
        for sums in (False, True):
            for block in BLOCKS:
                offsets = scattered(block, HOST, 1)
                places = scattered(block, 1 << 30, 2)
                addresses = places + np.uint64(device.data_ptr())
                times, bounds, ratios = [], [], []
                for round_ in range(rounds + 1):
                    bound = limit.run(to_host)
                    taken = loop.run(addresses, offsets, block, to_host, sums, *SHAPE) / 1e9
                    if round_:
                        times.append(taken)
                        bounds.append(bound)
                        ratios.append(bound / taken)
                compare(device, host, places, offsets, block)
                way = "to host" if to_host else "to device"
                target = ALONE_ON if sums else ALONE_OFF[to_host]
                name = f"kernel, {way}, sums {'on' if sums else 'off'}"
                lines.append(line(name, block, times, bounds, ratios, target))
    until.set()
    holder.join()
    return lines


def compare(device: Any, host: Any, places: Any, offsets: Any, block: int) -> None:
    """Every byte of some 256 blocks."""
    some = slice(None, None, max(1, len(places) // 256))
    for place, offset in zip(places[some], offsets[some], strict=True):
        here = device[int(place) : int(place) + block].cpu().numpy()
        if not np.array_equal(here, host[int(offset) : int(offset) + block]):
            raise SystemExit(f"blocks of {block} bytes differ")


def line(
    what: str,
    block: int,
    times: list[float],
    bounds: list[float],
    ratios: list[float],
    target: float | None,
) -> Line:
    """A case's medians."""
    result = Line(
        what,
        block,
        BATCH / statistics.median(times) / 1e9,
        BATCH / statistics.median(bounds) / 1e9,
        statistics.median(ratios),
        target,
    )
    print(result.text(), flush=True)
    return result


def whole(rounds: int, limit: Limit, transport: str) -> list[Line]:
    """The public API against a server of its own process."""
    lines = []
    server = ServerProcess("--pool=4GiB")
    try:
        cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        with infinistore.connect(f"infinistore://{server.address}", transport=transport) as conn:
            conn.prepare_device(0)
            for block in BLOCKS:
                lines += whole_of(conn, cache, block, rounds, limit, transport)
    finally:
        server.stop()
    return lines


def whole_of(
    conn: Any, cache: Any, block: int, rounds: int, limit: Limit, transport: str
) -> list[Line]:
    """Writes and reads of one block size."""
    torch.cuda.manual_seed(block)
    cache.random_(0, 256)
    places = scattered(block, 1 << 30, 3)
    writes: list[tuple[float, float]] = []
    reads: list[tuple[float, float]] = []
    for round_ in range(rounds + 1):
        keys = [f"{block}-{round_}-{i}" for i in range(len(places))]
        blocks = infinistore.Blocks(keys, places)
        torch.cuda.synchronize()
        for to_host, kept in ((True, writes), (False, reads)):
            bound = limit.run(to_host)
            want = None if to_host else cache.clone()
            if not to_host:
                cache.zero_()
                torch.cuda.synchronize()
            began = time.perf_counter()
            call = conn.write_cache if to_host else conn.read_cache
            call(cache, blocks, block)
            conn.sync()
            taken = time.perf_counter() - began
            if round_:
                kept.append((bound, taken))
            if want is not None:
                check(cache, want, places, block)
                cache.copy_(want)
        conn.delete(keys)
    lines = []
    for name, kept in (("write_cache", writes), ("read_cache", reads)):
        target = WHOLE if block == 65536 and transport == "shm" else None
        bounds, times = zip(*kept, strict=True)
        ratios = [bound / taken for bound, taken in kept]
        lines.append(line(f"{name}, {transport}", block, list(times), list(bounds), ratios, target))
    return lines


def check(cache: Any, want: Any, places: Any, block: int) -> None:
    """All blocks of the batch, on the GPU."""
    rows = torch.from_numpy((places // np.uint64(block)).astype(np.int64)).cuda()
    if not torch.equal(cache.view(-1, block)[rows], want.view(-1, block)[rows]):
        raise SystemExit(f"blocks of {block} bytes differ after a read")


def main() -> int:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("alone", "shm", "tcp"), action="append")
    options = parser.parse_args()
    only = options.only or ["alone", "shm", "tcp"]
    limit = Limit()
    lines = alone(options.rounds, limit) if "alone" in only else []
    for transport in ("shm", "tcp"):
        if transport in only:
            lines += whole(options.rounds, limit, transport)
    if options.json:
        options.json.write_text(json.dumps([asdict(item) for item in lines], indent=1))
    short = sum(item.is_short for item in lines)
    print(f"{len(lines)} figures, {short} short")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
