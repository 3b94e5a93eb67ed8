"""What may go wrong with RDMA: peers that die, links down, memory that may not be locked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import Code
from server_process import ServerProcess
from waiting import until

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., infinistore.Client]
SIZE, COUNT = 65536, 64
BLOCKS = [(f"k{index}", index * SIZE) for index in range(COUNT)]
RETRYABLE = {Code.DISCONNECTED, Code.TIMEOUT}


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, COUNT * SIZE, dtype=np.uint8)


WRITER = """
import sys, numpy as np, infinistore
client = infinistore.connect(sys.argv[1], transport="rdma", namespace="killed")
cache = np.full(64 * 65536, 7, np.uint8)
print("ready", flush=True)
turn = 0
while True:
    blocks = [(f"{sys.argv[2]}-{turn}-{i}", i * 65536) for i in range(64)]
    client.write_cache(cache, blocks, 65536).wait()
    cache[:] = 9
    client.read_cache(cache, blocks, 65536).wait()
    assert (cache == 7).all()
    turn += 1
"""


def start_writer(server: ServerProcess, name: str) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, server.url, name], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def test_clients_killed_in_the_middle_leave_nothing_behind(
    rdma_server: StartServer, rdma: Connect
) -> None:
    server = rdma_server("--pool=256MiB", "--evict-start=0.8", "--evict-stop=0.5")
    for turn in range(3):
        writers = [start_writer(server, f"{turn}-{number}") for number in range(2)]
        seals = server.stats()["seals"]
        until(lambda before=seals: server.stats()["seals"] > before + 100)  # type: ignore[misc]
        for writer in writers:
            writer.kill()
            writer.communicate()
        until(lambda: server.stats()["sessions"] == 0)
        stats = server.stats()
        assert (stats["reserved_bytes"], stats["quarantined_bytes"]) == (0, 0)
        assert (stats["pins"], stats["unaccounted_bytes"]) == (0, 0)
    client = rdma(server)
    source = noise(1)
    assert client.write_cache(source, BLOCKS, SIZE).wait(60).all_ok
    assert server.stop() == 0


def test_a_killed_server_is_a_clear_failure_and_a_new_one_is_found(
    rdma_server: StartServer, rdma: Connect
) -> None:
    server = rdma_server("--pool=64MiB")
    client = rdma(server)
    source = noise(2)
    batches = [
        client.write_cache(source, [(f"{turn}-{key}", at) for key, at in BLOCKS], SIZE)
        for turn in range(4)
    ]
    os.kill(server.pid, signal.SIGKILL)
    for batch in batches:
        assert set(batch.wait(30)) <= RETRYABLE | {Code.OK, Code.EXISTS}
    port = server.address.rpartition(":")[2]
    server.kill()
    again = rdma_server("--pool=64MiB", f"--port={port}")
    assert again.address == server.address
    until(lambda: client.write_cache(source, BLOCKS, SIZE).wait(30).all_ok)
    target = np.zeros_like(source)
    assert client.read_cache(target, BLOCKS, SIZE).wait(30).all_ok
    assert np.array_equal(target, source)
    assert client.transport == "rdma"


def test_a_link_that_goes_down_and_comes_up(
    rdma_server: StartServer, rdma: Connect, link: Callable[[str], None]
) -> None:
    server = rdma_server("--pool=64MiB")
    client = rdma(server)
    source = noise(3)
    assert client.write_cache(source, BLOCKS, SIZE).wait(30).all_ok
    link("down")
    target = np.zeros_like(source)
    started = time.monotonic()
    outcomes = client.read_cache(target, BLOCKS, SIZE).wait(30)
    assert set(outcomes) <= RETRYABLE | {Code.OK, Code.SETUP}
    assert time.monotonic() - started < 30
    link("up")

    def reads() -> bool:
        try:
            return bool(client.read_cache(target, BLOCKS, SIZE).wait(30).all_ok)
        except infinistore.InfiniStoreError:
            return False

    until(reads)
    assert np.array_equal(target, source)
    assert client.stats()["client_corrupt"] == 0
    stats = server.stats()
    assert (stats["reserved_bytes"], stats["unaccounted_bytes"]) == (0, 0)


def test_a_reader_whose_memory_is_gone_fails_alone(rdma_server: StartServer, rdma: Connect) -> None:
    """By a hand-written client: its keys name memory that is not registered."""
    ib = pytest.importorskip("ibverbs")
    from rdma_peer import Peer

    server = rdma_server("--pool=64MiB")
    bystander = rdma(server, namespace="shared")
    source = noise(4)
    assert bystander.write_cache(source, BLOCKS, SIZE).wait(30).all_ok
    with Peer(ib, server.address, 1 << 20, space=b"shared") as peer:
        code, message = peer.get_into_nowhere(b"k0", SIZE)
        assert code == Code.INVALID
        assert "not registered" in message
    target = np.zeros_like(source)
    assert bystander.read_cache(target, BLOCKS, SIZE).wait(30).all_ok
    assert np.array_equal(target, source)
    assert bystander.stats()["client_disconnects"] == 0


CAPPED = """
import json, resource, sys
import numpy as np
import infinistore
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
results = {}
for transport in ("rdma", "auto"):
    client = infinistore.connect(sys.argv[1], transport=transport, namespace=transport)
    cache = np.full(64 * 65536, 7, np.uint8)
    blocks = [(f"k{i}", i * 65536) for i in range(64)]
    try:
        client.write_cache(cache, blocks, 65536)
        client.sync()
        results[transport] = "written"
    except infinistore.InfiniStoreError as error:
        results[transport] = str(error)
print(json.dumps(results))
"""
# Without the capability that lifts the limit, which root has.
UNPRIVILEGED = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")


def test_a_client_that_may_lock_too_little_is_told_so(rdma_server: StartServer) -> None:
    server = rdma_server("--pool=64MiB", "--unix-socket=none")
    ended = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-c", CAPPED, server.url],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    results: dict[str, Any] = json.loads(ended.stdout)
    assert "RLIMIT_MEMLOCK is 65536" in results["rdma"]
    assert "ulimit -l" in results["rdma"]
    assert results["auto"] == "written"


def test_a_server_that_may_lock_too_little_says_so_and_serves_over_tcp(
    start_server: StartServer, connect: Any
) -> None:
    shell = 'ulimit -l 64; exec "$0" "$@"'
    ended = subprocess.run(
        [*UNPRIVILEGED, "bash", "-c", shell, sys.executable, "-m", "infinistore.server",
         "--rdma=on", "--port=0", "--admin-port=0", "--pool=64MiB", "--unix-socket=none"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode != 0
    assert "RLIMIT_MEMLOCK is 65536" in ended.stderr


def test_a_device_of_another_name_is_refused_by_name(
    rdma_server: StartServer, connect: Any
) -> None:
    server = rdma_server("--pool=64MiB")
    with pytest.raises(infinistore.InfiniStoreError, match="nosuch"):
        connect(server, transport="rdma", rdma_device="nosuch")
    client = connect(server, transport="rdma", rdma_device="rxe0:1")
    assert client.transport == "rdma"
