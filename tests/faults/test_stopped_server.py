"""A server that stood still: what it had granted on shared memory is free again once it goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

import infinistore
from infinistore import LinkError
from server_process import ServerProcess
from waiting import until

MIB = 1024**2


@pytest.mark.parametrize("bulk_bytes", [64 * 1024, 4 * MIB])
def test_a_living_client_leaves_nothing_in_quarantine(
    start_server: Callable[..., ServerProcess], bulk_bytes: int
) -> None:
    server = start_server("--pool=128MiB")
    moments = random.Random(11)
    source = bytes(bulk_bytes)
    ends = threading.Event()
    timeouts = 0

    def write() -> None:
        nonlocal timeouts
        number = 0
        while not ends.is_set():
            batches = []
            for _ in range(4):
                number += 1
                batches.append(client.write_cache(source, [(f"k{number}", 0)], bulk_bytes))
            timeouts += sum(code.name == "TIMEOUT" for b in batches for code in b.wait(10))

    with infinistore.connect(server.url, transport="shm", progress_timeout_s=0.1) as client:
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(10):
            time.sleep(moments.uniform(0.02, 0.06))
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(server.pid, signal.SIGCONT)
        ends.set()
        writer.join()
        assert timeouts > 0
        until(lambda: server.stats()["reserved_bytes"] == 0)
        stats = server.stats()
        assert (stats["quarantined_bytes"], stats["sessions_unfenced"]) == (0, 0)
        with contextlib.suppress(LinkError):  # each batch has said what became of it
            client.sync()
