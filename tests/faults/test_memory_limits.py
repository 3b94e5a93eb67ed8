"""Little memory of some kind: /dev/shm full, none to lock, no huge pages, a small limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import infinistore
from server_process import READY
from waiting import until

# Starts a server under `before`, a line of Python; it serves until its input ends.
SCRIPT = """
import resource, sys
{before}
from infinistore.server import main
main(["--port=0", "--admin-port=0", "--unix-socket=" + sys.argv[1], *sys.argv[2:]])
"""


def serves(before: str, *flags: str, wrapper: tuple[str, ...] = ()) -> None:
    """Starts such a server, and writes and reads over both transports until its pool is full."""
    folder = Path(tempfile.mkdtemp(prefix="is-"))
    command = [*wrapper, sys.executable, "-c", SCRIPT.format(before=before), str(folder / "s")]
    try:
        with subprocess.Popen(
            [*command, "--pool=32MiB", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                ready = READY.fullmatch(process.stdout.readline().strip())
                assert ready, process.communicate(timeout=20)
                health = f"http://{ready['admin']}/health"
                until(lambda: not json.load(urllib.request.urlopen(health))["populating"], 30)
                for transport in ("shm", "tcp"):
                    fill_twice(f"infinistore://{ready['data']}", transport)
                process.terminate()
                assert process.wait(20) == 0
            finally:
                process.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill_twice(url: str, transport: str) -> None:
    """64 MiB through a pool of 32 MiB: each page is touched, by both sides over shared memory."""
    with infinistore.connect(url, transport=transport) as client:
        assert client.transport == transport
        cache, target = os.urandom(1 << 20), bytearray(1 << 20)
        for number in range(64):
            blocks = [(f"{transport}{number}", 0)]
            assert client.write_cache(cache, blocks, 1 << 20).wait(20).all_ok
            target[:] = bytes(1 << 20)
            assert client.read_cache(target, blocks, 1 << 20).wait(20).all_ok
            assert target == cache
        assert client.match_prefix([f"{transport}63"]) == 1


def can(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def test_nothing_may_be_locked() -> None:
    serves("resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))")


def test_no_huge_pages() -> None:
    """None reserved, and none by the kernel's own choice."""
    no_thp = "import ctypes; assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0"
    for choice in ("auto", "off"):
        serves(no_thp, f"--huge-pages={choice}")


def test_dev_shm_is_full() -> None:
    """1 MiB of it, all taken: the pool does not lie there."""
    inside = (
        "mount -t tmpfs -o size=1m tmpfs /dev/shm && "
        'dd if=/dev/zero of=/dev/shm/full bs=1M count=2 2>/dev/null; exec "$@"'
    )
    wrapper = ("unshare", "--mount", "--map-root-user", "sh", "-c", inside, "sh")
    if not can(*wrapper, "true"):
        pytest.skip("no mount of its own is allowed here")
    serves("import os; assert os.statvfs('/dev/shm').f_bfree == 0", wrapper=wrapper)


def test_no_capability_is_needed() -> None:
    """The original did not start without CAP_SYS_RESOURCE."""
    wrapper = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    if not can(*wrapper, "true"):
        pytest.skip("capabilities cannot be dropped here")
    none = "assert 'CapEff:\\t0000000000000000' in open('/proc/self/status').read()"
    serves(none, wrapper=wrapper)


def test_a_pool_larger_than_the_address_space_is_refused() -> None:
    for name, letter, flag in (("RLIMIT_AS", "v", 2**33), ("RLIMIT_FSIZE", "f", 2**24)):
        before = f"resource.setrlimit(resource.{name}, ({flag}, {flag}))"
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(before=before), "none", "--pool=9GiB"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        said = done.stderr.splitlines()[-1]
        assert "9GiB" in said
        assert name in said or "does not fit" in said, said
        assert f"ulimit -{letter}" in said or "--pool" in said


def test_huge_pages_asked_for_and_not_there(start_server: Callable[..., object]) -> None:
    free = dict(
        line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    ).get("HugePages_Free:", "0")
    if int(free) >= 16:
        pytest.skip("this machine has huge pages to spare")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "infinistore.server", "--port=0", "--admin-port=0"),
            *("--pool=32MiB", "--unix-socket=none", "--huge-pages=on"),
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert "huge pages" in said
    assert "--huge-pages auto" in said
