"""What the doctor finds, from made-up facts; and that it runs here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from infinistore.cli import doctor
from infinistore.cli._admin import Admin
from infinistore.cli.doctor import Finding
from infinistore.server.machine import Limits, Memory

GIB = 2**30
MEMORY = Memory(32 * GIB, 20 * GIB, "this machine", 2**21, GIB)
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
        (doctor.check_server(Admin("127.0.0.1", 1)), "warn", "start one"),
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
    monkeypatch.setattr(doctor, "examine", lambda admin: found)
    result = CliRunner().invoke(doctor.command, ["--json"])
    assert result.exit_code == code
    assert json.loads(result.output)["ok"] is (code == 0)
    shown = CliRunner().invoke(doctor.command, [])
    assert shown.exit_code == code
    assert "[red]as it is[/red]" in shown.output  # found texts are no markup


def test_it_runs_on_this_machine() -> None:
    result = CliRunner().invoke(doctor.command, ["--json", "--admin", "127.0.0.1:1"])
    findings = {each["name"]: each for each in json.loads(result.output)["findings"]}
    assert {"cpu", "memory", "native part", "torch", "vllm", "server"} <= set(findings)
    assert findings["memory"]["status"] == "ok"
