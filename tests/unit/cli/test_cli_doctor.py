"""What the doctor finds, from made-up facts; and that it runs here."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from infinistore.cli import doctor
from infinistore.cli._admin import Admin
from infinistore.cli.doctor import Finding
from infinistore.server.machine import Limits, Memory

GIB = 2**30
MEMORY = Memory(32 * GIB, 20 * GIB, "this machine", 2**21, GIB)
NOBODY = Admin("127.0.0.1", 1)
LIMITS = Limits(file_bytes=None, address_space=None, locked_bytes=None, open_files=None)


def tight(**limits: int) -> Limits:
    return dataclasses.replace(LIMITS, **limits)


@pytest.mark.parametrize(
    ("finding", "status", "word"),
    [
        (doctor.check_memory(MEMORY, LIMITS), "ok", "takes 5GiB"),
        (doctor.check_memory(dataclasses.replace(MEMORY, available=0, huge_free=0), LIMITS),
         "fail", "does not fit"),
        (doctor.check_huge_pages(MEMORY), "ok", "1GiB free"),
        (doctor.check_huge_pages(dataclasses.replace(MEMORY, huge_free=0)), "warn",
         "sysctl vm.nr_hugepages=2560"),
        (doctor.check_huge_pages(dataclasses.replace(MEMORY, huge_page=0)), "warn", "none"),
        (doctor.check_memlock(LIMITS), "ok", "unlimited"),
        (doctor.check_memlock(tight(locked_bytes=65536)), "warn", "ulimit -l unlimited"),
        (doctor.check_open_files(LIMITS), "ok", "unlimited"),
        (doctor.check_open_files(tight(open_files=1024)), "warn", "ulimit -n"),
        (doctor.check_package("click", "none"), "ok", "click 8"),
        (doctor.check_package("no_such_package", "buy it"), "warn", "buy it"),
        (doctor.check_shared_memory(), "ok", "memfd"),
        (doctor.check_server(NOBODY, doctor.ask_health(NOBODY)), "warn", "start one"),
        (doctor.check_container(None, 8, MEMORY), "ok", "no limits"),
        (doctor.check_container(4.0, 8, MEMORY), "ok", "4 CPUs"),
        (doctor.check_container(0.5, 8, dataclasses.replace(MEMORY, source="the container (/x)")),
         "warn", "memory of the container (/x) and time of 0.5 CPUs"),
        (doctor.check_dev_shm(Path("/nowhere")), "warn", "mount -t tmpfs"),
        (doctor.check_cuda(Path("/nowhere"), "no-such-library.so"), "warn", "without a GPU"),
        (doctor.check_ports({}, False), "ok", ""),
    ],
)  # fmt: skip
def test_a_finding_has_a_status_and_a_fix(finding: Finding, status: str, word: str) -> None:
    assert finding.status == status
    assert word in f"{finding.detail} {finding.fix}"
    assert bool(finding.fix) is (status != "ok")


def test_a_folder_of_others_is_a_failure(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert doctor.check_unix_socket(tmp_path / "1.sock").status == "fail"
    tmp_path.chmod(0o700)
    assert doctor.check_unix_socket(tmp_path / "1.sock").status == "ok"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_exit_status_says_whether_something_must_be_mended(
    monkeypatch: pytest.MonkeyPatch, status: doctor.Status, code: int
) -> None:
    found = [Finding("thing", status, "[red]as it is[/red]", "mend it")]
    monkeypatch.setattr(doctor, "examine", lambda admin, is_quick: found)
    result = CliRunner().invoke(doctor.command, ["--json"])
    assert result.exit_code == code
    assert json.loads(result.output)["ok"] is (code == 0)
    shown = CliRunner().invoke(doctor.command, [])
    assert shown.exit_code == code
    assert "[red]as it is[/red]" in shown.output  # found texts are no markup


def test_it_runs_on_this_machine() -> None:
    result = CliRunner().invoke(doctor.command, ["--json", "--quick", "--admin", "127.0.0.1:1"])
    findings = {each["name"]: each for each in json.loads(result.output)["findings"]}
    assert {"cpu", "memory", "native part", "torch", "vllm", "server"} <= set(findings)
    assert findings["memory"]["status"] == "ok"


def test_a_port_that_a_stranger_has_is_a_failure_and_one_of_ours_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--port": ("127.0.0.1", port)}
        finding = doctor.check_ports(ports, has_server=False)
        assert (finding.status, f"sport = :{port}" in finding.fix) == ("fail", True)
        assert "another --port" in finding.fix
        assert doctor.check_ports(ports, has_server=True).status == "ok"
    assert doctor.check_ports(ports, has_server=False).status == "ok"


@pytest.mark.parametrize(
    ("text", "status"),
    [("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Fri", "fail"),
     ("NVRM version: NVIDIA UNIX Open Kernel Module  580.65.06  Release", "ok")],
)  # fmt: skip
def test_an_old_driver_is_named(tmp_path: Path, text: str, status: str) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(text)
    finding = doctor.check_cuda(tmp_path, "libc.so.6")
    assert finding.status == status
    assert doctor.check_cuda(tmp_path, "no-such-library.so").status == "fail"


@pytest.mark.parametrize(
    ("script", "status", "word"),
    [("pass", "ok", "loads"), ("raise ImportError('no vllm.thing')", "fail", "no vllm.thing")],
)
def test_a_connector_that_does_not_load_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: str, word: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{script}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(python))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    finding = doctor.check_connector()
    assert (finding.status, word in finding.detail) == (status, True)


def test_another_version_of_the_server_is_named() -> None:
    health = {"status": "ok", "pool_bytes": GIB, "version": "0.0.1"}
    finding = doctor.check_server(NOBODY, health)
    assert (finding.status, "version 0.0.1, here" in finding.detail) == ("warn", True)


def test_what_is_slow_is_left_out_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_connector", lambda: Finding("connector", "ok", "loads"))
    admin = Admin("127.0.0.1", 1)
    names = [finding.name for finding in doctor.examine(admin)]
    assert "connector" in names
    quick = [finding.name for finding in doctor.examine(admin, is_quick=True)]
    assert quick == [name for name in names if name != "connector"]
