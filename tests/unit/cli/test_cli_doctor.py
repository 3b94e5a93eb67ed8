"""What the doctor finds, from made-up facts; and that it runs here."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from infinistore.cli import doctor
from infinistore.cli._admin import Admin
from infinistore.cli._rdma import Port, peer_module, read_ports
from infinistore.cli.doctor import Finding
from infinistore.server.machine import Limits, Memory

GIB = 2**30
MEMORY = Memory(32 * GIB, 20 * GIB, "this machine", 2**21, GIB)
NOBODY = Admin("127.0.0.1", 1)
LIMITS = Limits(file_bytes=None, address_space=None, locked_bytes=None, open_files=None)


PORT = Port("mlx5_0", 1, "ACTIVE", "Ethernet", "eth1", 9000, ((3, "192.0.2.1", "RoCE v2"),))


def changed(**facts: Any) -> Port:
    return dataclasses.replace(PORT, **facts)


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
        (doctor.check_rdma([], False, False), "ok", "TCP"),
        (doctor.check_rdma([PORT], False, True), "warn", "ibverbs-providers"),
        (doctor.check_rdma([PORT], True, False), "warn", "--device /dev/infiniband"),
        (doctor.check_rdma([PORT], True, True), "ok", "mlx5_0:1"),
        (doctor.check_rdma_port(PORT), "ok", "192.0.2.1 (RoCE v2, index 3)"),
        (doctor.check_rdma_port(changed(state="DOWN")), "warn", "ip link set eth1 up"),
        (doctor.check_rdma_port(changed(state="INIT", link_layer="InfiniBand")), "warn", "opensm"),
        (doctor.check_rdma_port(changed(gids=())), "warn", "IP address"),
        (doctor.check_rdma_port(changed(mtu=1500)), "warn", "mtu 9000"),
        (doctor.check_peer_memory("", True), "warn", "nv_peer_mem"),
        (doctor.check_peer_memory("nvidia_peermem", True), "ok", "nvidia_peermem"),
        (doctor.check_peer_memory("", False), "ok", "no RDMA"),
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


def test_ports_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    assert read_ports(tmp_path) == []
    port = tmp_path / "class/infiniband/rxe0/ports/1"
    for name, text in {
        "state": "4: ACTIVE",
        "link_layer": "Ethernet",
        "gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001",
        "gids/1": "0000:0000:0000:0000:0000:ffff:0a63:0001",
        "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000",
        "gid_attrs/types/0": "IB/RoCE v1",
        "gid_attrs/types/1": "RoCE v2",
        "gid_attrs/ndevs/0": "rdma0",
    }.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(text + "\n")
    (tmp_path / "class/net/rdma0").mkdir(parents=True)
    (tmp_path / "class/net/rdma0/mtu").write_text("4200\n")
    (found,) = read_ports(tmp_path)
    assert (found.name, found.state, found.interface, found.mtu) == (
        "rxe0:1", "ACTIVE", "rdma0", 4200,
    )  # fmt: skip
    assert found.gids == ((0, "fe80::1", "IB/RoCE v1"), (1, "10.99.0.1", "RoCE v2"))
    assert found.routable() == [(1, "10.99.0.1", "RoCE v2")]


@pytest.mark.parametrize("name", ["nvidia_peermem", "nv_peer_mem", ""])
def test_either_module_for_gpus_is_recognised(tmp_path: Path, name: str) -> None:
    modules = tmp_path / "modules"
    modules.write_text(f"ib_uverbs 1 0 - Live 0x0\n{name or 'other'} 1 0 - Live 0x0\n")
    assert peer_module(modules) == name
