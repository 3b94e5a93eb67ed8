"""The command line against a real server: what it prints, its JSON, its exit status, its speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import infinistore
from server_process import ServerProcess


def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infinistore", *words],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | (environment or {}),
    )


@pytest.fixture
def asked(server: ServerProcess) -> Callable[..., Any]:
    """Runs a command against the module's server; its JSON."""

    def ask(*words: str) -> Any:
        done = run(*words, "--json", "--admin", server.admin_address)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def write(connect: Callable[..., infinistore.Client], namespace: str, count: int) -> None:
    client = connect(namespace=namespace)
    blocks = [(f"key-{index}", 0) for index in range(count)]
    client.write_cache(memoryview(bytearray(4096)), blocks, 4096, unit="bytes")
    client.sync()


def test_status_shows_a_running_server(
    server: ServerProcess, asked: Callable[..., Any], connect: Callable[..., infinistore.Client]
) -> None:
    write(connect, "status", 3)
    answer = asked("status")
    assert answer["health"]["status"] == "ok"
    assert answer["stats"]["keys"] >= 3
    shown = run("status", "--admin", server.admin_address)
    assert shown.returncode == 0
    assert "64MiB" in shown.stdout
    assert "hit rate" in shown.stdout


def test_keys_are_counted_and_purged(
    server: ServerProcess, asked: Callable[..., Any], connect: Callable[..., infinistore.Client]
) -> None:
    write(connect, "mine", 5)
    write(connect, "theirs", 2)
    assert asked("keys", "count", "--namespace", "mine")["count"] == 5
    assert asked("purge", "--namespace", "mine")["num"] == 5
    assert asked("keys", "count", "--namespace", "mine")["count"] == 0
    assert asked("keys", "count", "--namespace", "theirs")["count"] == 2
    assert asked("keys", "count", "--namespace", "never seen")["count"] == 0
    shown = run("purge", "--all", "--admin", server.admin_address)
    assert shown.stdout == "erased 2 keys of all namespaces\n" or "erased" in shown.stdout
    assert asked("keys", "count")["count"] == 0


def test_a_purge_of_everything_must_be_said(server: ServerProcess) -> None:
    done = run("purge", "--admin", server.admin_address)
    assert done.returncode == 2
    assert "--all" in done.stderr


def test_a_token_is_asked_for_and_shown(start_server: Callable[..., ServerProcess]) -> None:
    token = {"INFINISTORE_TOKEN": "s3cret"}
    server = start_server(environment=token)
    refused = run("status", "--admin", server.admin_address)
    assert refused.returncode == 1
    assert "INFINISTORE_TOKEN" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert run("status", "--admin", server.admin_address, environment=token).returncode == 0


def test_nobody_there_is_one_line_and_status_1() -> None:
    done = run("status", "--admin", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "start one with `infinistore`" in done.stderr


def test_the_doctor_sees_the_server(server: ServerProcess, asked: Callable[..., Any]) -> None:
    answer = asked("doctor", "--quick")
    findings = {each["name"]: each for each in answer["findings"]}
    assert answer["ok"] is True
    assert findings["server"]["status"] == "ok"
    assert findings["native part"]["status"] == "ok"
    assert server.admin_address in findings["server"]["detail"]
    for each in findings.values():
        assert each["fix"] or each["status"] == "ok", each


def test_version_and_help_are_quick() -> None:
    began = time.monotonic()
    done = run("--version")
    version_s = time.monotonic() - began
    assert done.stdout == f"infinistore {infinistore.__version__}\n"
    began = time.monotonic()
    assert run("--help").returncode == 0
    help_s = time.monotonic() - began
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    python_s = time.monotonic() - began
    print(f"\n--version {version_s:.2f} s, --help {help_s:.2f} s, bare Python {python_s:.2f} s")
    assert help_s < python_s + 1


def test_importing_the_package_changes_nothing_of_the_process() -> None:
    script = (
        "import os, signal, sys, threading\n"
        "def state(): return (dict(os.environ), threading.active_count(),\n"
        "    len(os.listdir('/proc/self/task')),\n"
        "    [signal.getsignal(n) for n in signal.valid_signals()])\n"
        "before = state()\n"
        "import infinistore\n"
        "assert state() == before\n"
        "assert not {'torch', 'vllm'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
