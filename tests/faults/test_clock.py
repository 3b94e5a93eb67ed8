"""The wall clock jumps by an hour, either way: no lease, deadline or timeout notices."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import infinistore
from infinistore import Code
from server_process import ServerProcess
from waiting import until

HOUR_S = 3600
StartServer = Callable[..., ServerProcess]

# Every wall clock of libc, moved by as many seconds as stand in a file that tests write to.
WALL_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *offset;

__attribute__((constructor)) static void map_offset(void) {
  int fd = open(getenv("TEST_CLOCK_OFFSET"), O_RDONLY);
  void *found = fd < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) offset = found;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!failed && is_wall && offset) now->tv_sec += *offset;
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *into) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (into) *into = exact.tv_sec;
  return exact.tv_sec;
}
"""


class WallClock:
    """What to start a process with, and by how much its wall clock is then wrong."""

    def __init__(self, folder: Path, library: Path) -> None:
        path = folder / "offset"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK_OFFSET": str(path)}

    def jump(self, seconds: int) -> None:
        self._offset[:] = struct.pack("q", struct.unpack("q", self._offset[:])[0] + seconds)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to make the clock with")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(WALL_CLOCK)
    made = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(folder / "clock.c")]
    subprocess.run([*command, "-ldl"], check=True)
    return made


@pytest.fixture
def clock(tmp_path: Path, library: Path) -> WallClock:
    made = WallClock(tmp_path, library)
    made.jump(HOUR_S)
    done = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=os.environ | made.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert abs(float(done.stdout) - time.time() - HOUR_S) < 600, "the clock is not moved"
    made.jump(-HOUR_S)
    return made


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_leases_and_staged_values_outlast_a_jump_and_end_in_time(
    start_server: StartServer, clock: WallClock, transport: str
) -> None:
    server = start_server("--stage-timeout=4s", environment=clock.environment)
    with infinistore.connect(server.url, transport=transport) as client:
        cache = np.arange(8192, dtype=np.uint8)
        client.write_cache(cache, [("k", 0), ("begun", 0)], 4096, value_bytes=8192)
        client.write_cache(cache, [("k", 4096)], 4096, value_bytes=8192, value_offset=4096)
        client.sync()
        long = client.lookup(["k"], lease_s=300)
        short = client.lookup(["k"], lease_s=3)
        assert (long.wait(10), short.wait(10)) == (1, 1)
        waiting = client.read_cache(bytearray(8192), [("begun", 0)], 8192, wait_s=60)
        clock.jump(HOUR_S)
        client.delete(["k"])  # from here on only the leases hold its bytes
        stats = server.stats()
        assert (stats["pins"], stats["staged_values"]) == (2, 1)
        assert not waiting.done
        clock.jump(-2 * HOUR_S)
        # A jump back must not keep them: each ends after its own time.
        until(lambda: server.stats()["leases"] == 1, 30)
        assert server.stats()["pins"] == 1
        until(lambda: server.stats()["staged_values"] == 0, 30)
        assert waiting.wait(30)[0] == Code.MISSING
        client.release(long.lease_ids)
        until(lambda: server.stats()["pins"] == 0)
        assert client.stats()["client_disconnects"] == 0
    assert server.stop() == 0


# A client that waits while its own clock jumps; each wait ends when it should.
WAITER = """
import sys, time
import infinistore
url, transport = sys.argv[1:3]
with infinistore.connect(url, "clock", transport=transport) as client:
    half = bytes(range(256)) * 16
    client.write_cache(half, [(transport, 0)], 4096, value_bytes=8192)
    client.sync()
    target = bytearray(8192)
    read = client.read_cache(target, [(transport, 0)], 8192, wait_s=60)
    never = client.read_cache(bytearray(8192), [(transport, 0)], 8192, wait_s=1.5)
    wall = time.time()
    for jump_s in (3600, -3600):
        print("waiting", flush=True)
        sys.stdin.readline()
        assert abs(time.time() - wall - jump_s) < 1000, "its clock did not jump"
        assert not read.done
    began = time.monotonic()
    assert never.wait(30).missing == [0]
    assert time.monotonic() - began < 20
    client.write_cache(half, [(transport, 0)], 4096, value_bytes=8192, value_offset=4096)
    assert read.wait(20).all_ok
    assert target == half * 2
    stats = client.stats()
    assert (stats["client_timeouts"], stats["client_disconnects"]) == (0, 0), stats
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_clients_waits_and_deadlines_do_not_notice_a_jump(
    start_server: StartServer, clock: WallClock, transport: str
) -> None:
    server = start_server()
    with subprocess.Popen(
        [sys.executable, "-c", WAITER, server.url, transport],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            for jump_s in (HOUR_S, -2 * HOUR_S):
                assert process.stdout.readline() == "waiting\n"
                clock.jump(jump_s)
                process.stdin.write("jumped\n")
                process.stdin.flush()
            _, errors = process.communicate(timeout=50)
            assert process.returncode == 0, errors
        finally:
            process.kill()
