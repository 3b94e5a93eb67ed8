"""Attacks a live server by `live_fuzz` beside a client that keeps the rules, then looks for leaks.

The server is `python -m infinistore.server`, or the one that --server names: fuzz_server, built
with sanitizers. Exit status 1 if anything was found; the server's log is kept then.

    python tests/fuzz/live.py --frames N [--server build/asan/tests/fuzz/fuzz_server]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from server_process import READY, ServerProcess  # noqa: E402
from wire_client import STATS, WireClient  # noqa: E402

ATTACKER = ROOT / "build/dev/tests/fuzz/live_fuzz"
BYSTANDER = ROOT / "tests/fuzz/bystander.py"
POOL_MIB = 256
WARM_UP_SHARE = 10  # of the frames: before the first look at memory
SETTLE_S = 60.0
GROWTH_MIB_MAX = 24  # of memory that is not the pool, and of the allocator's own habits
LEFT_NOTHING = (
    "reserved_bytes",
    "quarantined_bytes",
    "staged_values",
    "pins",
    "leases",
    "leased_keys",
    "waiting_keys",
)


class Server(Protocol):
    """What is attacked."""

    address: str

    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def log(self) -> str: ...
    def stop(self) -> int: ...
    def kill(self) -> None: ...


class CoreServer:
    """A fuzz_server of some build: the core without Python."""

    def __init__(self, program: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="infinistore-"))
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, self._folder / "socket", str(POOL_MIB << 20)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        ready = READY.fullmatch(self._process.stdout.readline().decode().strip())
        assert ready, self.log()
        self.address = ready["data"]
        self.url = f"infinistore://{self.address}"
        self.pid = self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """The exit status; the leak checker's, too."""
        self._process.communicate(timeout=60)
        return self._process.returncode

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def counters(server: Server) -> dict[str, int]:
    """What STATS answers."""
    with WireClient(server.address) as client:
        body = client.call(STATS).body
    found, at = {}, 4
    for _ in range(*struct.unpack_from("<I", body)):
        size = body[at]
        name = body[at + 1 : at + 1 + size].decode()
        (found[name],) = struct.unpack_from("<Q", body, at + 1 + size)
        at += 9 + size
    return found


def own_memory_mib(pid: int) -> float:
    """Of a process, what is not shared: the pool does not count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not tell RssAnon")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def settled(server: Server) -> dict[str, int]:
    """The counters once nobody but the asker is there; fails if anything is left then."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        now = counters(server)
        left = {name: now[name] for name in LEFT_NOTHING if now[name]}
        if now["sessions"] != 1:
            left["sessions"] = now["sessions"]
        if not left:
            break
        assert time.monotonic() < deadline_s, f"left behind: {left}"
        time.sleep(0.1)
    parts = sum(now[f"{part}_bytes"] for part in ("free", "reserved", "quarantined", "sealed"))
    assert parts == now["capacity_bytes"], f"{parts} bytes are accounted for: {now}"
    return now


class Attack:
    """One server, one bystander, and attackers until so many frames were taken."""

    def __init__(self, server: Server, folder: Path, seed: int, jobs: int) -> None:
        self.server = server
        self._folder = folder
        self._seed = seed
        self._jobs = jobs
        self.memory_mib: list[float] = []
        self.fds: list[int] = []

    def look(self) -> None:
        settled(self.server)
        time.sleep(0.2)  # the asker's own descriptor is closed by then
        self.memory_mib.append(own_memory_mib(self.server.pid))
        self.fds.append(descriptors(self.server.pid))

    def run(self, frames: int) -> dict[str, int]:
        """What the bystander did meanwhile."""
        bystander = subprocess.Popen(
            [sys.executable, BYSTANDER, self.server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert bystander.stdout is not None
            assert bystander.stdout.readline() == b"ready\n", "the bystander cannot begin"
            self._seed += 1
            command = [str(ATTACKER), self.server.address, f"--frames={frames}"]
            command += [f"--seed={self._seed}", f"--jobs={self._jobs}", f"--out={self._folder}"]
            with subprocess.Popen(command) as attackers:
                while attackers.poll() is None and bystander.poll() is None:
                    time.sleep(0.1)
                if attackers.poll() is None:
                    attackers.terminate()
            assert bystander.poll() is None, "the bystander was disturbed"
            assert attackers.returncode == 0, "the attackers found something"
            output, _ = bystander.communicate(timeout=60)
            assert bystander.returncode == 0, "the bystander was disturbed"
        finally:
            if bystander.poll() is None:
                bystander.kill()
                bystander.wait()
        done: dict[str, int] = json.loads(output)
        assert done["read"] > 0, "the bystander read nothing"
        return done


def attack(frames: int, start: Callable[[], Server], folder: Path, seed: int, jobs: int = 2) -> str:
    """The figures. Raises `AssertionError` with what was found."""
    server = start()
    running = Attack(server, folder, seed, jobs)
    try:
        running.run(max(frames // WARM_UP_SHARE, 1))
        running.look()
        done = running.run(frames - frames // WARM_UP_SHARE)
        running.look()
        assert server.stop() == 0, "the server did not end cleanly"
    except BaseException:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.log").write_text(server.log())
        print(f"the server's log is {folder / 'server.log'}", file=sys.stderr)
        raise
    finally:
        server.kill()
    (memory, memory_after), (fds, fds_after) = running.memory_mib, running.fds
    figures = (
        f"the bystander wrote {done['written']} values and read {done['read']}, all right "
        f"({done['refused']} found no room, {done['missed']} were evicted first); the server's "
        f"own memory {memory:.1f} -> {memory_after:.1f} MiB, descriptors {fds} -> {fds_after}"
    )
    assert fds_after <= fds, figures
    # With AddressSanitizer freed memory is kept for a while, and leaks are looked for at the end.
    assert isinstance(server, CoreServer) or memory_after - memory <= GROWTH_MIB_MAX, figures
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--server", type=Path)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(6), "little"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "build/fuzz/live")
    args = parser.parse_args()

    def start() -> Server:
        if args.server:
            return CoreServer(args.server)
        return ServerProcess(f"--pool={POOL_MIB}MiB")

    begun_s = time.monotonic()
    try:
        figures = attack(args.frames, start, args.out, args.seed, args.jobs)
    except AssertionError as found:
        print(f"FOUND: {found}", file=sys.stderr)
        return 1
    print(f"{args.frames} frames in {time.monotonic() - begun_s:.0f} s: {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
