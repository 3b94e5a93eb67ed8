"""kill -9 of a client in the middle of its writes: its memory comes back within a second."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import infinistore
from figures import RecordFigure
from server_process import ServerProcess
from transports import TRANSPORTS

MIB = 1024**2
GONE_S_MAX = 1.0

# Stages halves of values, then writes whole ones without end.
WRITER = """
import sys, infinistore
client = infinistore.connect(sys.argv[1], transport=sys.argv[2], namespace="killed")
cache = bytearray(4 << 20)
blocks = [(f"{sys.argv[3]}-staged-{i}", i << 18) for i in range(8)]
client.write_cache(cache, blocks, 1 << 18, unit="bytes", value_bytes=1 << 19)
client.sync()
print("staged", flush=True)
if sys.argv[4] == "wait":
    sys.stdin.readline()
number = 0
while True:
    number += 1
    blocks = [(f"{sys.argv[3]}-{number}-{i}", i << 20) for i in range(4)]
    client.write_cache(cache, blocks, 1 << 20, unit="bytes")
    if number % 4 == 0:
        client.sync()
"""


@contextmanager
def writer(server: ServerProcess, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A writing process that has staged values; killed at the end, if it was not before."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, server.url, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"staged\n"
            yield process
        finally:
            process.kill()


def unfinished(server: ServerProcess) -> int:
    stats = server.stats()
    total = sum(stats[f"{kind}_bytes"] for kind in ("free", "reserved", "quarantined", "sealed"))
    assert total == stats["capacity_bytes"], "free + reserved + quarantined + sealed = capacity"
    return int(stats["reserved_bytes"] + stats["quarantined_bytes"])


def kill_and_wait(process: subprocess.Popen[bytes], server: ServerProcess) -> float:
    """Seconds from the kill until nothing of the writer's is left."""
    process.kill()
    start = time.monotonic()
    while unfinished(server):
        assert time.monotonic() - start < 10, server.stats()
        time.sleep(0.005)
    return time.monotonic() - start


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_half_written_values_go_with_their_writer(
    transport: str, start_server: Callable[..., ServerProcess], record_figure: RecordFigure
) -> None:
    server = start_server("--pool=128MiB")
    with writer(server, transport, "a", "wait") as process:
        held = unfinished(server)
        assert held >= 8 << 19  # the staged values' whole size
        gone_s = kill_and_wait(process, server)
    record_figure(
        f"kill -9 of a writer with staged values ({transport})",
        f"{held / MIB:.0f} MiB of reservations gone after {1000 * gone_s:.0f} ms",
        f"< {GONE_S_MAX:g} s, and the accounting adds up",
        ok=gone_s < GONE_S_MAX,
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_writer_killed_at_any_moment(
    transport: str, start_server: Callable[..., ServerProcess], record_figure: RecordFigure
) -> None:
    server = start_server("--pool=128MiB")
    moments = random.Random(7)
    times_s = []
    for turn in range(5):
        with writer(server, transport, str(turn), "go") as process:
            time.sleep(moments.uniform(0.0, 0.15))
            times_s.append(kill_and_wait(process, server))
    record_figure(
        f"kill -9 of a writer at random moments ({transport})",
        f"reservations gone after {1000 * max(times_s):.0f} ms (slowest of {len(times_s)})",
        f"< {GONE_S_MAX:g} s, and the accounting adds up",
        ok=max(times_s) < GONE_S_MAX,
    )
    # What others do afterwards is untouched, and what the dead one sealed is whole.
    with infinistore.connect(server.url, namespace="killed") as client:
        target = bytearray(MIB)
        sealed = next((key for key in ("0-1-0", "4-1-0") if client.exists([key])[0]), None)
        if sealed is not None:
            client.read_cache(target, [(sealed, 0)], MIB, unit="bytes")
            client.sync()
        client.write_cache(target, [("after", 0)], MIB, unit="bytes")
        client.sync()
    assert server.stop() == 0
