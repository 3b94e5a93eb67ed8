"""Processes that end, or are interrupted, with clients open and batches under way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

import infinistore
from infinistore import Code
from server_process import ServerProcess
from transports import TRANSPORTS
from waiting import until

# Two clients, an asyncio one, and batches of each that are under way or wait for what never comes.
OPEN = """
import asyncio, gc, sys, threading
import numpy as np
import infinistore
url, transport = sys.argv[1:3]
cache = np.ones(2000 * 4096, np.uint8)
one = infinistore.connect(url, "exit", transport=transport)
two = infinistore.connect(url, "exit", transport=transport)
one.write_cache(cache, [("begun", 0)], 4096, value_bytes=8192).wait()  # half: reads of it wait
blocks = [(f"{id(one)}-{i}", i * 4096) for i in range(2000)]
write = one.write_cache(cache, blocks, 4096)
read = two.read_cache(cache, blocks, 4096, wait_s=30)
never = two.read_cache(cache, [("begun", 0)], 4096, wait_s=60)
lookup = two.lookup(["begun"], lease_s=30)
"""
ENDINGS = {
    "nothing is closed": "",
    "clients first": "del one, two, write, read, never, lookup",
    "batches first": "del write, read, never, lookup, one, two",
    "cache first": "del cache, read, one, never, two",
    "closed twice": "one.close(); one.close(); two.close(); two.close(); del one, two",
    "closed at exit": "import atexit; atexit.register(one.close); atexit.register(two.close)",
    "a cycle": "cycle = [one, two, write, read]; cycle.append(cycle); del one, two, cycle",
    "kept by a module": "sys.modules['keeper'] = one; infinistore.kept = (two, never)",
    "an exception": "raise SystemExit(0)",
    "a daemon thread waits": "threading.Thread(target=never.wait, daemon=True).start()",
    "daemon threads submit": """
def submit():
    while True:
        two.read_cache(cache, blocks[:64], 4096).wait()
for _ in range(3):
    threading.Thread(target=submit, daemon=True).start()
""",
    "a loop that is closed": """
loop = asyncio.new_event_loop()
third = loop.run_until_complete(infinistore.connect_async(url, "exit", transport=transport))
task = loop.create_task(third.read_cache(cache, [("begun", 0)], 4096, wait_s=60))
loop.run_until_complete(asyncio.sleep(0))
task.cancel()
try:
    loop.run_until_complete(task)
except asyncio.CancelledError:
    pass
loop.close()
""",
    "a loop that ends with a task": """
async def main():
    third = await infinistore.connect_async(url, "exit", transport=transport)
    globals()["third"] = third
    globals()["task"] = asyncio.create_task(
        third.read_cache(cache, [("begun", 0)], 4096, wait_s=60))
    await asyncio.sleep(0)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ENDINGS)
def test_a_process_ends_in_any_order_with_all_still_open(
    server: ServerProcess, transport: str, name: str
) -> None:
    code = OPEN + ENDINGS[name]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, server.url, transport],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: server.stats()["sessions"] == 0)
    until(lambda: server.stats()["reserved_bytes"] + server.stats()["quarantined_bytes"] == 0)
    stats = server.stats()
    assert stats["pins"] == stats["leases"] == stats["protocol_errors"] == 0


# Ctrl-C at any moment of writes and reads; afterwards the same client does all of it again.
INTERRUPTED = """
import signal, sys
import numpy as np
import infinistore
url, transport = sys.argv[1:3]
source = np.random.default_rng(1).integers(0, 256, 3000 * 4096, dtype=np.uint8)
target = np.zeros_like(source)
client = infinistore.connect(url, "ctrl-c-" + transport, transport=transport)
batches = [[(f"{n}-{i}", i * 4096) for i in range(3000)] for n in range(3)]
is_inside = False
def interrupt(*_):  # as Python's own, but only where it is caught
    if is_inside:
        raise KeyboardInterrupt
    print("interrupted", flush=True)
signal.signal(signal.SIGINT, interrupt)
print("ready", flush=True)
inside = 0
while inside < 8:
    for blocks in batches:
        try:
            is_inside = True
            client.write_cache(source, blocks, 4096)
            client.sync()
            client.read_cache(target, blocks, 4096).wait()
            client.match_prefix([key for key, _ in blocks])
            is_inside = False
        except KeyboardInterrupt:
            is_inside = False
            inside += 1
            print("interrupted", flush=True)
    client.delete([key for blocks in batches for key, _ in blocks])
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("enough", flush=True)
try:
    client.sync()
except infinistore.KeyNotFound:  # a read that came behind the delete
    pass
target[:] = 0
blocks = [(f"last-{i}", i * 4096) for i in range(3000)]
assert client.write_cache(source, blocks, 4096).wait().all_ok
assert client.read_cache(target, blocks, 4096).wait().all_ok
assert np.array_equal(target, source)
assert client.stats()["protocol_errors"] == 0
client.close()
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ctrl_c_in_the_middle_of_batches_leaves_a_client_that_works(
    server: ServerProcess, transport: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, server.url, transport],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            number = 0
            while True:
                number += 1
                time.sleep(0.003 + 0.004 * (number % 10))
                os.kill(process.pid, signal.SIGINT)
                said = process.stdout.readline()
                if said != "interrupted\n":
                    break
            assert said == "enough\n"
            _, errors = process.communicate(timeout=45)
            assert process.returncode == 0, errors
        finally:
            process.kill()
    until(lambda: server.stats()["reserved_bytes"] + server.stats()["quarantined_bytes"] == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_with_values_leases_and_busy_clients_ends_with_0(
    start_server: Callable[..., ServerProcess], number: signal.Signals
) -> None:
    """And has logged nothing for each of the requests."""
    server = start_server()
    with contextlib.ExitStack() as clients:
        for transport in TRANSPORTS:
            client = clients.enter_context(infinistore.connect(server.url, transport=transport))
            cache = bytearray(64 * 4096)
            blocks = [(f"{transport}{n}", n * 4096) for n in range(64)]
            client.write_cache(cache, blocks, 4096)
            client.sync()
            assert client.lookup([key for key, _ in blocks], lease_s=60).wait(10) == 64
            client.write_cache(cache, [(transport, 0)], 4096, value_bytes=8192)
            client.sync()
            for turn in range(100):
                assert client.exists([f"missing-{turn}"]) == [False]
                client.read_cache(bytearray(4096), [("missing", 0)], 4096).wait(10)
        waiting = client.read_cache(bytearray(8192), [(transport, 0)], 8192, wait_s=60)
        busy = [client.read_cache(cache, blocks, 4096) for _ in range(50)]
        server.process.send_signal(number)
        for batch in [waiting, *busy]:  # each ends, and with an outcome that says why
            ended = set(batch.wait(20))
            known = {Code.OK, Code.MISSING, Code.DRAINING, Code.DISCONNECTED, Code.TIMEOUT}
            assert ended <= known, ended
        assert server.process.wait(20) == 0, server.log()
        with contextlib.suppress(infinistore.InfiniStoreError):
            client.sync()
    assert "Traceback" not in server.log()
    assert len(server.log().splitlines()) < 20, server.log()
