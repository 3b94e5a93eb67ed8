"""A real server process, from its first line to its exit: what an operator relies on."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import infinistore
from infinistore.server.machine import read_memory
from server_process import READY, ServerProcess
from waiting import until

GIB = 2**30
StartServer = Callable[..., ServerProcess]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for a unix socket's path; pytest's own is not."""
    made = Path(tempfile.mkdtemp(prefix="is-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_populated(server: ServerProcess) -> None:
    until(lambda: not server.admin("/health")["populating"], 30, "still populating")


def test_a_server_is_ready_when_it_says_so(start_server: StartServer) -> None:
    server = start_server()
    health = server.admin("/health")
    assert health["status"] == "ok"
    assert health["version"] == infinistore.__version__
    assert health["pool_bytes"] == server.pool_bytes == 64 * 2**20
    socket.create_connection(split(server.address), timeout=1).close()
    mode = os.stat(server.unix_path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert f"infinistore_pool_capacity_bytes {64 * 2**20}\n" in server.admin("/metrics")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_it_soon_with_0_and_leaves_nothing(
    folder: Path, start_server: StartServer, number: signal.Signals
) -> None:
    server = start_server(f"--unix-socket={folder}/s")
    busy = http.client.HTTPConnection(*split(server.admin_address))
    busy.request("GET", "/health")
    busy.getresponse().read()  # a kept-alive connection, as a scraper holds one
    idle = socket.create_connection(split(server.address))
    began = time.monotonic()
    server.process.send_signal(number)
    assert server.process.wait(10) == 0, server.log()
    took_s = time.monotonic() - began
    busy.close()
    idle.close()
    print(f"\n{number.name}: ended in {took_s:.2f} s")
    assert took_s < 2
    assert list(folder.iterdir()) == []
    assert "Traceback" not in server.log()
    again = start_server(f"--port={split(server.address)[1]}", f"--unix-socket={folder}/s")
    assert again.stop() == 0


def test_it_starts_with_no_flag_at_all(folder: Path) -> None:
    """Ports alone are set, by environment: another server may run on this machine."""
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(folder),
        "INFINISTORE_PORT": "0",
        "INFINISTORE_ADMIN_PORT": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "infinistore"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = READY.fullmatch(process.stdout.readline().strip())
            assert ready
            assert ready["data"].startswith("127.0.0.1:")
            assert Path(ready["unix"]).parent == folder / "infinistore"
            assert 8 * 2**20 <= int(ready["pool"]) <= read_memory().total // 3
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert list((folder / "infinistore").iterdir()) == []


def test_settings_come_from_file_and_environment(folder: Path, start_server: StartServer) -> None:
    file = folder / "settings.toml"
    file.write_text('[server]\nworkers = 3\nlog_level = "error"\n')
    server = start_server(f"--config={file}")
    assert server.stats()["workers"] == 3
    assert server.stop() == 0
    assert server.log() == ""
    environment = {"INFINISTORE_CONFIG": str(file), "INFINISTORE_WORKERS": "2"}
    assert start_server(environment=environment).stats()["workers"] == 2
    assert start_server("--workers=1", environment=environment).stats()["workers"] == 1


def test_a_token_is_seen_neither_in_the_process_list_nor_in_the_log(
    start_server: StartServer,
) -> None:
    server = start_server("--log-level=debug", environment={"INFINISTORE_TOKEN": "s3cret-token"})
    assert b"s3cret-token" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    with pytest.raises(infinistore.AuthError):
        infinistore.connect(server.url, token="wrong-token").close()
    infinistore.connect(server.url, token="s3cret-token").close()
    assert server.admin("/health") == {"status": "ok"}  # no more without the token
    with pytest.raises(urllib.error.HTTPError, match="401"):
        server.admin("/stats")
    server.process.terminate()
    assert server.process.wait(10) == 0
    assert "s3cret-token" not in server.log()
    assert "wrong-token" not in server.log()


@pytest.mark.parametrize("words", [("--token", "s3cret-token"), ("--token=s3cret-token",)])
def test_a_token_among_the_arguments_is_put_out_of_sight(
    start_server: StartServer, words: tuple[str, ...]
) -> None:
    server = start_server(*words)
    arguments = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert b"s3cret" not in arguments
    assert b"*" * len("s3cret-token") in arguments
    assert b"--pool=64MiB" in arguments
    infinistore.connect(server.url, token="s3cret-token").close()
    assert server.stop() == 0
    assert "until it was read" in server.log()
    assert "s3cret" not in server.log()


def test_a_log_of_json_is_one_object_a_line(start_server: StartServer) -> None:
    """The management's lines and the core's, of whatever a peer sends."""
    server = start_server("--log-format=json", "--insecure", "--rdma=off")
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as stranger:
        stranger.sendall(b'"no frame" \\ at all \xff' * 10)
        while stranger.recv(4096):
            pass
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert all(set(line) == {"time", "level", "logger", "message"} for line in lines)
    assert {"infinistore.core"} < {line["logger"] for line in lines}
    assert all(datetime.fromisoformat(line["time"]).utcoffset() == timedelta() for line in lines)
    assert any(line["level"] == "WARNING" for line in lines)


def test_ipv6_is_served(start_server: StartServer) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    server = start_server("--host=::1")
    assert server.address.startswith("[::1]:")
    assert server.admin("/health")["status"] == "ok"
    with infinistore.connect(server.url, transport="tcp") as client:
        assert client.exists(["nothing"]) == [False]


def test_without_uvloop_it_says_so_and_serves(folder: Path, start_server: StartServer) -> None:
    (folder / "uvloop.py").write_text("raise ImportError('taken away')\n")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    server = start_server(environment={"PYTHONPATH": path})
    assert server.admin("/health")["status"] == "ok"
    assert "taken away" in server.log()
    assert "asyncio's own loop" in server.log()
    assert server.stop() == 0


def test_it_serves_on_when_nobody_reads_its_output() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "infinistore.server", "--port=0", "--admin-port=0"]
        with subprocess.Popen(
            [*command, "--pool=32MiB", "--unix-socket=none"], stdout=writer, stderr=log
        ) as process:
            os.close(writer)
            try:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(2)
                process.terminate()
                assert process.wait(10) == 0
            finally:
                process.kill()


def test_the_pool_is_kept_below_its_watermark(start_server: StartServer) -> None:
    server = start_server(
        "--pool=32MiB", "--evict-start=0.5", "--evict-stop=0.25", "--housekeeping-interval=100ms"
    )
    wait_until_populated(server)
    with infinistore.connect(server.url) as client:
        blocks = [(f"key-{index}", 0) for index in range(24)]
        for first in range(0, 24, 4):  # a quarter of the pool at most may be unfinished
            part = blocks[first : first + 4]
            client.write_cache(memoryview(bytearray(2**20)), part, 2**20, unit="bytes")
            client.sync()
        deadline = time.monotonic() + 10
        while server.stats()["sealed_bytes"] >= 16 * 2**20:
            assert time.monotonic() < deadline, server.stats()
            time.sleep(0.05)
        stats = server.stats()
        assert stats["evictions"] == 24 - stats["keys"] > 0
        kept = client.exists([key for key, _ in blocks])
    assert kept.count(True) == stats["keys"]  # which ones: a policy's tests, shard by shard


def test_a_16_gib_pool_answers_within_2_seconds(start_server: StartServer) -> None:
    """Memory is populated behind the server: it must answer long before that is done."""
    if read_memory().available < 17 * GIB:
        pytest.skip(f"17 GiB of free memory needed, {read_memory().available / GIB:.1f} there")
    began = time.monotonic()
    server = start_server("--pool=16GiB")
    health = server.admin("/health")
    health_s = time.monotonic() - began
    with infinistore.connect(server.url) as client:
        assert client.exists(["nothing"]) == [False]
        answered_s = time.monotonic() - began
        client.write_cache(memoryview(bytearray(b"v" * 4096)), [("key", 0)], 4096, unit="bytes")
        client.sync()
        stored_s = time.monotonic() - began
    server.kill()
    ready = health["populated_bytes"] / GIB
    print(
        f"\n16 GiB pool: health after {health_s:.2f} s ({ready:.2f} GiB populated), "
        f"first answer after {answered_s:.2f} s, first value stored after {stored_s:.2f} s"
    )
    assert health["pool_bytes"] == 16 * GIB
    assert health["populating"], "populated before it answered: it waited"
    assert stored_s < 2


@pytest.mark.parametrize("connections", [0, 4])
def test_an_idle_server_uses_less_than_1_percent_of_a_core(
    start_server: StartServer, connections: int
) -> None:
    server = start_server()
    wait_until_populated(server)
    clients = [infinistore.connect(server.url) for _ in range(connections)]
    try:
        began, before = time.monotonic(), cpu_seconds(server.pid)
        time.sleep(5)
        used = (cpu_seconds(server.pid) - before) / (time.monotonic() - began)
    finally:
        for client in clients:
            client.close()
    print(f"\nidle server, {connections} idle clients: {100 * used:.2f} % of a core")
    assert used < 0.01
