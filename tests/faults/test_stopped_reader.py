"""A reader that stands still while the pool under it is overwritten: right bytes, or no bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

import infinistore
from server_process import ServerProcess
from transports import TRANSPORTS
from waiting import until

MIB = 1024**2
StartServer = Callable[..., ServerProcess]

# Leases for 50 ms, reads, and checks what came; says nothing, but fails if it is another's bytes.
READER = """
import sys
import numpy as np
import infinistore
url, transport = sys.argv[1:3]
Code = infinistore.Code
client = infinistore.connect(url, "stopped", transport=transport)
target = np.zeros(4 << 20, np.uint8)
print("ready", flush=True)
number = read = 0
while True:
    number = (number + 1) % 12
    key = f"k{number}"
    target[:] = 251
    try:
        lookup = client.lookup([key], lease_s=0.05)
        lookup.wait(10)
        batch = client.read_cache(target, [(key, 0)], target.size, lease_id=lookup.lease_id)
        outcome = batch.wait(10)[0]
    except infinistore.LinkError:
        continue
    if outcome == Code.OK:
        assert (target == target[0]).all(), "torn"
        assert target[0] % 12 == number and target[0] < 240, (number, target[0])
        read += 1
        if read == 5:
            print("reads", flush=True)
    elif outcome == Code.MISSING or outcome == Code.LEASE_EXPIRED:
        assert (target == 251).all(), "a miss that wrote"
    else:
        assert outcome in (Code.TIMEOUT, Code.DISCONNECTED), outcome
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_reader_stopped_in_its_read_never_sees_what_replaced_it(
    start_server: StartServer, transport: str
) -> None:
    server = start_server("--pool=64MiB")
    chance = random.Random(9)
    generation = 0

    def overwrite(client: infinistore.Client) -> None:
        """Every key with new bytes, and some keys gone: 48 MiB of 64."""
        nonlocal generation
        generation = (generation + 1) % 20
        for number in range(12):
            value = np.full(4 * MIB, generation * 12 + number, np.uint8)
            client.write_cache(value, [(f"k{number}", 0)], 4 * MIB, on_exists="replace").wait(10)
        client.delete([f"k{chance.randrange(12)}" for _ in range(2)])

    with infinistore.connect(server.url, "stopped") as client:
        overwrite(client)
        with subprocess.Popen(
            [sys.executable, "-c", READER, server.url, transport],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as reader:
            try:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n"
                for _ in range(8):
                    time.sleep(chance.uniform(0.002, 0.03))
                    os.kill(reader.pid, signal.SIGSTOP)
                    overwrite(client)
                    os.kill(reader.pid, signal.SIGCONT)
                assert reader.stdout.readline() == "reads\n"
                assert reader.poll() is None
            finally:
                reader.kill()
            _, errors = reader.communicate(timeout=20)
            assert errors == ""
        until(lambda: server.stats()["pins"] == 0)
    assert server.stop() == 0
