"""What can go wrong at a start: each a clear line and status 2, and nobody else is harmed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import infinistore
from server_process import ServerProcess
from waiting import freeze

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for a unix socket's path; pytest's own is not."""
    made = Path(tempfile.mkdtemp(prefix="is-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def refusal(*flags: str, **environment: str) -> str:
    """The one line that a server says which cannot start."""
    defaults = ["--port=0", "--admin-port=0", "--pool=32MiB", "--unix-socket=none"]
    given = {flag.partition("=")[0] for flag in flags}
    added = [flag for flag in defaults if flag.partition("=")[0] not in given]
    done = subprocess.run(
        [sys.executable, "-m", "infinistore.server", *added, *flags],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | environment,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("infinistore: error: "), done.stderr
    assert "Traceback" not in done.stderr
    return lines[-1]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_a_start_after_kill_9_finds_nothing_in_its_way(
    folder: Path, start_server: StartServer
) -> None:
    flags = [f"--unix-socket={folder}/s"]
    first = start_server(*flags)
    flags += [f"--port={port_of(first.address)}", f"--admin-port={port_of(first.admin_address)}"]
    first.process.kill()
    first.process.wait()
    assert (folder / "s").is_socket()
    second = start_server(*flags)
    with infinistore.connect(second.url) as client:
        assert client.transport == "shm"
    assert second.stop() == 0
    assert list(folder.iterdir()) == []


def test_killed_servers_leave_no_sockets_for_long(folder: Path, start_server: StartServer) -> None:
    """Chosen ports mean chosen socket names: nobody would ever reuse, and so remove, one."""
    environment = {"XDG_RUNTIME_DIR": str(folder)}
    for _ in range(2):
        killed = start_server("--unix-socket=", environment=environment)
        killed.process.kill()
        killed.process.wait()
    last = start_server("--unix-socket=", environment=environment)
    names = sorted(path.name for path in (folder / "infinistore").iterdir())
    assert names == [f"pid-{last.pid}.sock", f"pid-{last.pid}.sock.lock"]


def test_a_live_servers_socket_is_not_robbed(folder: Path, start_server: StartServer) -> None:
    first = start_server(f"--unix-socket={folder}/s")
    said = refusal(f"--unix-socket={folder}/s")
    assert "belongs to a running server" in said
    assert "--unix-socket" in said
    with infinistore.connect(first.url, transport="shm") as client:
        assert client.exists(["nothing"]) == [False]


def test_a_stopped_server_is_alive_and_keeps_its_socket(
    folder: Path, start_server: StartServer
) -> None:
    first = start_server(f"--unix-socket={folder}/s")
    freeze(first.pid)
    try:
        assert "belongs to a running server" in refusal(f"--unix-socket={folder}/s")
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert first.admin("/health")["status"] == "ok"


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_port_in_use_is_named(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(f"{flag}={port}")
    assert str(port) in said
    assert "in use" in said
    assert "--port" in said or "--admin-port" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--host=no-such-host.invalid", "--insecure"], ["no-such-host.invalid"]),
        (["--host=0.0.0.0"], ["0.0.0.0", "INFINISTORE_TOKEN", "--insecure"]),
        (["--admin-host=0.0.0.0"], ["0.0.0.0", "--insecure"]),
        (["--host=192.0.2.1", "--insecure"], ["192.0.2.1"]),  # an address of no machine here
        (["--pool=60TiB"], ["pool = 60TiB does not fit", "free", "--pool "]),
        (["--pool=64KiB"], ["too small"]),
        (["--eviction=crystal-ball"], ["crystal-ball", "lru"]),
        (["--token-file=/nowhere"], ["/nowhere"]),
        (["--config=/nowhere.toml"], ["/nowhere.toml"]),
        (["--unix-socket=/nowhere/s"], ["/nowhere"]),
        (["--unix-socket=/tmp/" + "x" * 120], ["107", "--unix-socket"]),
        (["--port=65536"], ["65536", "0 to 65535"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value[0].startswith("--") else "",
)
def test_a_bad_setting_is_one_line_with_the_remedy(flags: list[str], words: list[str]) -> None:
    said = refusal(*flags)
    for word in words:
        assert word in said, said


def test_a_pool_beyond_the_limits_of_the_process_is_refused() -> None:
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**24, 2**24))\n"
        "from infinistore.server import main\n"
        "main(['--port=0', '--admin-port=0', '--pool=32MiB', '--unix-socket=none'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert "RLIMIT_FSIZE = 16MiB" in done.stderr
    assert "ulimit -f" in done.stderr


def test_a_stop_while_memory_is_populated_is_clean(start_server: StartServer) -> None:
    server = start_server("--pool=2GiB")
    assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_garbage_on_the_admin_port_does_not_hurt(start_server: StartServer) -> None:
    server = start_server()
    host, _, port = server.admin_address.rpartition(":")
    for garbage in (b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /purge HTTP/1.1\r\nContent-"):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(garbage)
    assert server.admin("/health")["status"] == "ok"
    assert server.stop() == 0
