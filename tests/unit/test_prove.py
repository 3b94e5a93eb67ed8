"""The proofs' own judgement: what fails, is skipped or says nothing must not look proven."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "prove.py"

REPORT = """<testsuites><testsuite>
<testcase name="test_quiet" time="1.5"/>
<testcase name="test_figures" time="1"/>
<testcase name="test_short" time="1"><failure message="AssertionError: x: 3"/></testcase>
<testcase name="test_broken" time="1"><failure message="KeyError: 'a'&#10;more"/></testcase>
<testcase name="test_absent" time="0"><skipped message="needs 17 GiB"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prove", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "prove", module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_every_test_shows_and_only_passing_ones_are_ok(prove: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    recorded = [
        prove.Line("a figure", "1", "1", ok=True, test="test_figures"),
        prove.Line("x", "3", "< 2", ok=False, test="test_short"),
    ]
    added = {line.test: line for line in prove.unrecorded(report, recorded)}
    assert added["test_quiet"].ok
    assert added["test_quiet"].figure == "passed in 1.5 s"
    assert not added["test_broken"].ok
    assert "KeyError" in added["test_broken"].figure
    assert not added["test_absent"].ok
    assert "needs 17 GiB" in added["test_absent"].figure
    assert "test_figures" not in added
    assert "test_short" not in added  # its own line says so already


def test_tests_that_did_not_run_are_short(prove: ModuleType, tmp_path: Path) -> None:
    assert [line.ok for line in prove.unrecorded(tmp_path / "none.xml", [])] == [False]


def test_the_lines_of_a_benchmarks_check_are_those_of_this_run(
    prove: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "check.json"
    found.write_text("of an earlier run")
    measured = {"ours": "9 GB/s", "beside": "10 GB/s", "ratio": "0.90", "target": ">= 0.95"}
    record = {"checks": [{"lines": [{"name": "read", "ok": False, **measured}]}]}

    def run(command: list[str]) -> int:
        assert not found.exists()
        if command == ["measure"]:
            found.write_text(json.dumps(record))
        return 1

    monkeypatch.setattr(prove, "run", run)
    line = prove.Line("read", "9 GB/s beside 10 GB/s, 0.90", ">= 0.95", ok=False)
    assert prove.bench_check(["measure"], found) == [line]
    (broken,) = prove.bench_check(["break"], found)
    assert not broken.ok
    assert "exit status 1, no record" in broken.figure


def test_every_proof_has_a_make_target_and_tests_that_exist(prove: ModuleType) -> None:
    makefile = (SCRIPT.parents[1] / "Makefile").read_text()
    listed = next(line for line in makefile.splitlines() if line.startswith("PROOFS := "))
    assert listed.split()[2:] == [proof.name for proof in prove.PROOFS]
    for named in ("test_vllm_pd", "test_vllm_reuse", "test_vllm_faults", "test_manners"):
        assert f"tests/e2e/{named}.py" in SCRIPT.read_text()
        assert (SCRIPT.parents[1] / "tests" / "e2e" / f"{named}.py").exists()


def test_the_table_says_short_and_the_status_follows(
    prove: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [prove.Line("good", "1", "1", ok=True), prove.Line("bad", "3", "< 2", ok=False)]
    monkeypatch.setattr(prove, "PROOFS", (prove.Proof("mine", "a promise", lambda: lines),))
    monkeypatch.setattr(prove, "FOUND", tmp_path)
    monkeypatch.setattr(sys, "argv", ["prove.py", "mine"])
    assert prove.main() == 1
    said = capsys.readouterr().out
    assert "SHORT  bad: 3  (target: < 2)" in said
    assert "2 lines, 1 short" in said
    monkeypatch.setattr(prove, "PROOFS", (prove.Proof("mine", "a promise", list),))
    assert prove.main() == 1  # nothing found is not proven
    monkeypatch.setattr(prove, "PROOFS", (prove.Proof("mine", "a promise", lambda: lines[:1]),))
    assert prove.main() == 0
