"""`infinistore verify` and readers against a pool that a client of its memory has damaged."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import infinistore
from infinistore.errors import Code
from server_process import ServerProcess
from waiting import until
from wire_client import WireClient

SIZE = 100_000


def values(count: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (count, SIZE), dtype=np.uint8)


def blocks(count: int, names: str = "key") -> list[tuple[str, int]]:
    return [(f"{names}-{index}", index * SIZE) for index in range(count)]


def write(client: infinistore.Client, data: np.ndarray, names: str = "key") -> None:
    client.write_cache(data, blocks(len(data), names), SIZE, unit="bytes")
    client.sync()


@contextmanager
def pool_of(server: ServerProcess) -> Iterator[mmap.mmap]:
    """The pool's first region, mapped as any client of the machine maps it."""
    with WireClient(server.unix_path, nonce=nonce_of(server)) as client:
        fd = client.fds[0]
        with mmap.mmap(fd, os.fstat(fd).st_size) as memory:
            yield memory


def nonce_of(server: ServerProcess) -> bytes:
    with WireClient(server.address) as client:
        return client.nonce


def damage(server: ServerProcess, value: bytes, at: int) -> None:
    """Changes a byte of the only place of the pool that has the value's first bytes."""
    with pool_of(server) as memory:
        start = memory.find(value[:64])
        assert start >= 0
        assert memory.find(value[:64], start + 1) < 0
        memory[start + at] ^= 0x10


def verify(server: ServerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infinistore", "verify", "--admin", server.admin_address]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)


def begin_verify(server: ServerProcess, *words: str) -> subprocess.Popen[str]:
    """At 1 MB/s, which takes long; it has begun when this returns."""
    command = [sys.executable, "-m", "infinistore", "verify", "--rate", "1MB/s"]
    command += ["--admin", server.admin_address, *words]

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = begin()
    while verify(server).returncode == 0:  # one at a time: else it is refused
        if process.poll() is not None:  # as ours was
            process.communicate()
            process = begin()
    return process


@pytest.fixture
def fresh(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server()


@pytest.fixture(params=["shm", "tcp"])
def client(request: pytest.FixtureRequest, fresh: ServerProcess) -> Iterator[infinistore.Client]:
    with infinistore.connect(
        fresh.url, transport=request.param, connect_timeout_s=20, progress_timeout_s=20
    ) as client:
        yield client


def test_a_damaged_value_is_found_named_dropped_and_counted_and_no_other(
    fresh: ServerProcess,
) -> None:
    data = values(8)
    with infinistore.connect(fresh.url, namespace="tenant") as client:
        write(client, data)
        done = verify(fresh)
        assert done.returncode == 0, done.stderr
        assert "8 values" in done.stdout
        assert "0 corrupt" in done.stdout
        damage(fresh, data[5].tobytes(), SIZE - 1)
        done = verify(fresh, "--json", "--rate", "500MB/s")
        answer = json.loads(done.stdout)
        assert done.returncode == 1
        assert (answer["values"], answer["bytes"], answer["corrupt"]) == (8, 8 * SIZE, 1)
        assert answer["damaged"] == [{"namespace": "tenant", "key": "key-5"}]
        there = [index != 5 for index in range(8)]
        assert client.exists([name for name, _ in blocks(8)]) == there
        assert fresh.stats()["corrupt"] == 1
        back = np.zeros_like(data)
        kept = [block for block, is_there in zip(blocks(8), there, strict=True) if is_there]
        client.read_cache(back, kept, SIZE, unit="bytes")
        client.sync()
        assert np.array_equal(np.delete(back, 5, 0), np.delete(data, 5, 0))
    done = verify(fresh)
    assert done.returncode == 0
    assert fresh.admin("/integrity") == {"ok": True, "wrong": ""}


def test_keys_are_named_without_json_too(fresh: ServerProcess) -> None:
    data = values(2)
    with infinistore.connect(fresh.url) as client:
        write(client, data)
        damage(fresh, data[0].tobytes(), 70)
        done = verify(fresh)
    assert done.returncode == 1
    assert "1 corrupt" in done.stdout
    assert "dropped key-0" in done.stdout


def test_a_cancelled_verify_ends_on_the_server_too(fresh: ServerProcess) -> None:
    with infinistore.connect(fresh.url) as client:
        write(client, values(400))
        process = begin_verify(fresh, "--json")
        time.sleep(0.6)  # some progress has come
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 130
        answer = json.loads(out)
        assert answer["cancelled"] is True
        assert not answer.get("done")
        until(lambda: verify(fresh, "--rate", "1GB/s").returncode == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_goes_in_the_middle_of_a_verify(fresh: ServerProcess, number: int) -> None:
    """Asked to go it goes, with nothing held; whoever verifies is told that not all was seen."""
    with infinistore.connect(fresh.url) as client:
        write(client, values(400))
    process = begin_verify(fresh)
    fresh.process.send_signal(number)
    assert fresh.process.wait(20) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert said.count("\n") == 1
    assert "ended" in said


def test_verify_without_a_server_is_one_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "infinistore", "verify", "--admin", f"127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_a_reader_of_many_keys_is_told_which_is_damaged_and_the_server_drops_it(
    fresh: ServerProcess, client: infinistore.Client
) -> None:
    data = values(6)
    write(client, data)
    damage(fresh, data[2].tobytes(), 50_000)
    back = np.zeros_like(data)
    batch = client.read_cache(back, blocks(6), SIZE, unit="bytes")
    outcomes = batch.wait(10)
    expected = [Code.OK, Code.OK, Code.CORRUPT, Code.OK, Code.OK, Code.OK]
    assert list(outcomes) == expected
    assert np.array_equal(np.delete(back, 2, 0), np.delete(data, 2, 0))
    until(lambda: fresh.stats()["corrupt"] == 1)
    assert client.exists([name for name, _ in blocks(6)]) == [code == 0 for code in expected]
    assert fresh.stats()["erased"] == 0
    write(client, data)  # cures it
    batch = client.read_cache(back, blocks(6), SIZE, unit="bytes")
    assert list(batch.wait(10)) == [Code.OK] * 6
    assert np.array_equal(back, data)


def test_sync_names_a_damaged_key_as_missing(
    fresh: ServerProcess, client: infinistore.Client
) -> None:
    data = values(2)
    write(client, data)
    damage(fresh, data[1].tobytes(), 3)
    client.read_cache(np.zeros_like(data), blocks(2), SIZE, unit="bytes")
    with pytest.raises(infinistore.KeyNotFound, match="key-1"):
        client.sync()


@pytest.mark.parametrize(("offset", "size"), [(0, SIZE), (40_000, 20_000), (40_001, 1_003)])
def test_a_range_is_never_returned_damaged_whatever_its_bounds(
    fresh: ServerProcess, client: infinistore.Client, offset: int, size: int
) -> None:
    """Put in three ranges; one of them is damaged in the middle of what is read."""
    data = values(1)[0]
    for start, end in ((0, 40_000), (40_000, 60_000), (60_000, SIZE)):
        part = np.ascontiguousarray(data[start:end])
        client.write_cache(
            part, [("k", 0)], end - start, unit="bytes", value_bytes=SIZE, value_offset=start
        )
        client.sync()
    damage(fresh, data.tobytes(), 40_500)
    back = np.zeros(size, np.uint8)
    batch = client.read_cache(back, [("k", 0)], size, unit="bytes", value_offset=offset)
    assert batch.wait(10)[0] in (Code.CORRUPT, Code.MISSING)
    until(lambda: fresh.stats()["corrupt"] == 1)
    assert client.exists(["k"]) == [False]
