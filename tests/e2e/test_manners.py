"""Good manners: what server and client cost where nobody uses them, and what an import changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from figures import RecordFigure
from server_process import ServerProcess

MIB = 1024**2
IDLE_S = 10.0
IDLE_PERCENT_MAX = 1.0
ANSWER_S_MAX = 2.0
CLIENT_BYTES_MAX = 20e6

IDLE_CLIENT = """
import sys, infinistore
cache = bytearray(1 << 20)
clients = [infinistore.connect(sys.argv[1], transport=t) for t in ("shm", "tcp")]
for n, client in enumerate(clients):
    blocks = [(f"{n}-{i}", i * 4096) for i in range(256)]
    client.write_cache(cache, blocks, 4096, unit="bytes")
    client.sync()
    client.read_cache(cache, blocks, 4096, unit="bytes")
    client.sync()
print("idle", flush=True)
sys.stdin.readline()
for client in clients:
    client.close()
"""

# An engine has numpy; what the client brings with it beyond is the client's.
CLIENT_MEMORY = """
import gc, json, re, sys
import numpy as np

def resident():
    # Of every mapping but the pool's: also of libraries, whose pages others might share.
    total, counts = 0, False
    for line in open("/proc/self/smaps"):
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = "memfd:" not in line
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total

block, count = 65536, 1024
source = np.arange(block * count // 8, dtype=np.uint64).view(np.uint8)
target = np.ones(block * count, np.uint8)
gc.collect()
before = resident()
import infinistore
client = infinistore.connect(sys.argv[1], transport=sys.argv[2])
for turn in range(4):
    blocks = [(f"{turn}-{sys.argv[2]}-{i}", i * block) for i in range(count)]
    client.write_cache(source, blocks, block, unit="bytes")
    client.sync()
    client.read_cache(target, blocks, block, unit="bytes")
    client.sync()
    client.delete([key for key, _ in blocks])
    assert (source == target).all()
    target.fill(1)
del blocks
gc.collect()
print(json.dumps({"added": resident() - before, "transport": client.transport}))
client.close()
"""

IMPORT = """
import json, os, signal, sys

def state():
    status = open("/proc/self/status").read().splitlines()
    return {
        "environment": dict(os.environ),
        "signals": [repr(signal.getsignal(n)) for n in signal.valid_signals()],
        "masks": [line for line in status if line.startswith(("Sig", "Shd"))],
        "threads": len(os.listdir("/proc/self/task")),
        "affinity": sorted(os.sched_getaffinity(0)),
    }

before = state()
import infinistore
infinistore.connect  # names that are loaded late are part of it
after = state()
heavy = sorted({"torch", "vllm"} & set(sys.modules))
print(json.dumps({"changed": [k for k in before if before[k] != after[k]], "heavy": heavy}))
"""


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far (the number that clock_getcpuclockid makes on Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def run_python(source: str, *arguments: str) -> dict[str, object]:
    """What a process of its own prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@contextmanager
def idle_client(url: str) -> Iterator[int]:
    """A process with a shared-memory and a TCP client that have done their work."""
    with subprocess.Popen(
        [sys.executable, "-c", IDLE_CLIENT, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"idle\n"
            yield process.pid
            process.communicate(b"\n", timeout=10)
            assert process.returncode == 0
        finally:
            process.kill()


def wait_populated(server: ServerProcess) -> None:
    deadline = time.monotonic() + 30
    while server.stats()["populated_bytes"] < server.pool_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_idle_server_and_client_leave_the_cores_alone(
    server: ServerProcess, record_figure: RecordFigure
) -> None:
    wait_populated(server)
    with idle_client(server.url) as client_pid:
        time.sleep(0.5)  # ends of the traffic before
        start, before = time.monotonic(), (cpu_s(server.pid), cpu_s(client_pid))
        time.sleep(IDLE_S)
        window_s = time.monotonic() - start
        after = (cpu_s(server.pid), cpu_s(client_pid))
    for name, used_s in zip(
        ("idle server", "idle client (shm and tcp)"),
        (after[0] - before[0], after[1] - before[1]),
        strict=True,
    ):
        percent = 100 * used_s / window_s
        record_figure(
            name,
            f"{percent:.2f} % of a core over {window_s:.0f} s",
            f"< {IDLE_PERCENT_MAX:g} %",
            ok=percent < IDLE_PERCENT_MAX,
        )


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def test_a_server_with_a_pool_of_16_gib_answers_within_two_seconds(
    start_server: Callable[..., ServerProcess], record_figure: RecordFigure
) -> None:
    import infinistore

    if available_bytes() < 17 << 30:
        pytest.skip(f"needs 17 GiB of free memory, of which {available_bytes() >> 20} MiB are free")
    times_s = []
    for _ in range(3):
        start = time.monotonic()
        server = start_server("--pool=16GiB")
        client = infinistore.connect(server.url)
        client.write_cache(bytearray(4096), [("first", 0)], 4096, unit="bytes")
        client.sync()
        assert client.exists(["first"]) == [True]
        times_s.append(time.monotonic() - start)
        assert server.stats()["populated_bytes"] < 16 << 30  # memory is populated behind it
        client.close()
        server.kill()
    record_figure(
        "server with a 16 GiB pool",
        f"first write and answer {max(times_s):.2f} s after exec (slowest of {len(times_s)})",
        f"< {ANSWER_S_MAX:g} s",
        ok=max(times_s) < ANSWER_S_MAX,
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_client_takes_little_memory(
    transport: str, start_server: Callable[..., ServerProcess], record_figure: RecordFigure
) -> None:
    server = start_server("--pool=512MiB")
    found = run_python(CLIENT_MEMORY, server.url, transport)
    added = int(str(found["added"]))
    assert found["transport"] == transport
    record_figure(
        f"memory a client adds ({transport})",
        f"{added / 1e6:.1f} MB beyond the pool's mapping, after 512 MiB of traffic",
        f"< {CLIENT_BYTES_MAX / 1e6:.0f} MB",
        ok=added < CLIENT_BYTES_MAX,
    )


def test_an_import_changes_nothing_in_the_process(record_figure: RecordFigure) -> None:
    found = run_python(IMPORT)
    assert found["heavy"] == []
    changed = ", ".join(str(name) for name in found["changed"])  # type: ignore[attr-defined]
    record_figure(
        "import infinistore changes",
        changed or "nothing",
        "no environment variable, signal handler, thread count",
        ok=not changed,
    )


def test_the_probe_of_an_import_sees_changes() -> None:
    """The twin of the test above: a module that misbehaves is caught."""
    rude = IMPORT.replace(
        "import infinistore\ninfinistore.connect",
        "import threading, time\n"
        "os.environ['X'] = '1'\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()\n#",
    )
    changed = run_python(rude)["changed"]
    assert isinstance(changed, list)
    assert {"environment", "signals", "threads"} <= set(changed)
    assert os.environ.get("X") != "1"
