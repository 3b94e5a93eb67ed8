"""What must hold, proven: runs the tests and commands behind each line and prints its figure.

    scripts/prove.py manners          the lines of one proof
    scripts/prove.py --all            every line in one table; exit status 1 if any is short
    scripts/prove.py --all --reuse    takes what this commit's earlier runs left in build/proofs/

A proof that fails, is skipped, or records no figure counts as short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOUND = ROOT / "build" / "proofs"
WIDTH = 100


@dataclass(frozen=True, slots=True)
class Line:
    """One promise: what was measured, what was promised."""

    name: str
    figure: str
    target: str
    ok: bool
    test: str = ""  # that found it


@dataclass(frozen=True, slots=True)
class Proof:
    """A line of the list, or several; `find` gives their figures."""

    name: str
    promise: str
    find: Callable[[], list[Line]]


def run(command: list[str], **environment: str) -> int:
    """Runs with its output shown (on stderr: stdout is for figures); the exit status."""
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=2
    ).returncode


def by_tests(*selection: str) -> Callable[[], list[Line]]:
    """The figures that these tests record (tests/figures.py)."""

    def find() -> list[Line]:
        with tempfile.TemporaryDirectory() as folder:
            figures, report = Path(folder) / "figures", Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *selection]
            status = run(command, INFINISTORE_FIGURES=str(figures))
            text = figures.read_text() if figures.exists() else ""
            lines = [Line(**json.loads(line)) for line in text.splitlines()]
            lines += unrecorded(report, lines)
        if status and all(line.ok for line in lines):
            lines.append(Line("pytest", f"exit status {status}", "0", ok=False))
        return lines

    return find


def unrecorded(report: Path, recorded: list[Line]) -> list[Line]:
    """A line for each test that recorded none, and for each that failed for another reason."""
    if not report.exists():
        return [Line("pytest", "wrote no report", "a report", ok=False)]
    lines = []
    tests_recorded = {line.test for line in recorded}
    tests_short = {line.test for line in recorded if not line.ok}
    for case in ElementTree.parse(report).iter("testcase"):
        name = str(case.get("name"))
        outcomes = [o for o in case if o.tag in ("failure", "error", "skipped")]
        if outcomes and name not in tests_short:
            said = (outcomes[0].get("message") or "").replace("\n", " ")[:200]
            figure = f"{outcomes[0].tag}: {said}"
            lines.append(Line(sentence(name), figure, "passes", ok=False, test=name))
        elif not outcomes and name not in tests_recorded:
            figure = f"passed in {float(case.get('time', 0)):.1f} s"
            lines.append(Line(sentence(name), figure, "passes", ok=True, test=name))
    return lines


def sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def bench() -> list[Line]:
    """Every target of `make bench-check`, from its own record."""
    run([sys.executable, "benchmarks/peers.py", "redis", "mooncake", "nixl"])  # or it is short
    return bench_check(["scripts/bench.sh", "--check"], ROOT / "build" / "bench-check.json")


def integrity() -> list[Line]:
    """What comparing every read with its checksum costs."""
    found = ROOT / "build" / "bench-integrity.json"
    found.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "infinistore", "bench", "--check", "--only", "integrity"]
    return bench_check([*command, "--json", str(found)], found)


def bench_check(command: list[str], found: Path) -> list[Line]:
    """The lines of a benchmark's check, from the record that the command leaves."""
    found.unlink(missing_ok=True)
    status = run(command)
    if not found.exists():
        return [Line(" ".join(command), f"exit status {status}, no record", "runs", ok=False)]
    return [
        Line(
            line["name"],
            " ".join(filter(None, [line["ours"], "beside" * bool(line["beside"]), line["beside"]]))
            + f"{', ' * bool(line['ratio'])}{line['ratio']}",
            line["target"],
            ok=line["ok"],
        )
        for check in json.loads(found.read_text())["checks"]
        for line in check["lines"]
    ]


def eviction() -> list[Line]:
    """The eviction policy reuse on recorded traces, and the pool under churn."""
    found = ROOT / "build" / "trace.json"
    found.parent.mkdir(exist_ok=True)
    found.unlink(missing_ok=True)
    command = ["-m", "infinistore", "bench", "trace", "--trace", "benchmarks/traces", "--check"]
    status = run([sys.executable, *command, "--json", str(found)])
    if not found.exists():
        return [Line("bench trace", f"exit status {status}, no record", "runs", ok=False)]
    return [
        Line(
            target["name"],
            f"{target['ours']:.4f} = {target['ratio']:.3f} of {target['limit']:.4f}",
            f">= {target['target']:.3f}",
            ok=target["ok"],
        )
        for target in json.loads(found.read_text())["targets"]
    ]


def demo() -> list[Line]:
    """Equality of the main job's output, from the demo's own record."""
    found = ROOT / "build" / "demo.json"
    found.unlink(missing_ok=True)
    status = run(["scripts/demo.sh"])
    if not found.exists():
        return [Line("make demo", f"exit status {status}, no build/demo.json", "runs", ok=False)]
    record = json.loads(found.read_text())
    transports, faults = record["transports"], record.get("faults", [])
    prompts, same = record["prompts"], record["identical"]  # on each transport
    restarted = record.get("external_hit_tokens_after_restart", 0)
    return [
        Line("make demo ends well", f"exit status {status}", "0", ok=status == 0),
        Line(
            "demo: identical outputs",
            f"{same} of {prompts}, over {' and '.join(transports)}",
            "all, at least 24 prompts on both transports",
            ok=same == prompts >= 24 * len(transports) and {"shm", "tcp"} <= set(transports),
        ),
        Line(
            "demo: hits and twins",
            "; ".join(faults) or "every prompt's hits are its whole blocks, twins fail",
            "local + external hits = the whole blocks before the last token",
            ok=not faults,
        ),
        Line(
            "demo: tokens from the store",
            f"{record['external_hit_tokens']}, of which {restarted} after the decode's restart",
            "> 0 after a restart",
            ok=restarted > 0,
        ),
    ]


def peers() -> list[Line]:
    """Beside vLLM's MooncakeStoreConnector, from the record of that benchmark."""
    found = ROOT / "build" / "bench_vllm.json"
    found.unlink(missing_ok=True)
    status = run(["scripts/bench_vllm.sh"])
    if not found.exists():
        return [Line("make bench-vllm", f"exit status {status}, no record", "runs", ok=False)]
    record = json.loads(found.read_text())
    lines = [Line(row["name"], row["figure"], row["target"], row["ok"]) for row in record["lines"]]
    return lines or [Line("make bench-vllm", "no figure", "a figure", ok=False)]


def cpu() -> list[Line]:
    """What the connector adds to a cold prefill, and how long a hit waits for the store."""
    found = ROOT / "build" / "connector_cpu.json"
    found.unlink(missing_ok=True)
    status = run(["scripts/connector_cpu.sh"])
    if not found.exists():
        return [Line("connector_cpu.sh", f"exit status {status}, no record", "runs", ok=False)]
    return [
        Line(
            row["name"],
            f"{row['figure']} beside {row['limit']}, ratio {row['ratio']:.4f}",
            f"<= {row['target']:.2f}",
            row["ok"],
        )
        for row in json.loads(found.read_text())["lines"]
    ]


def clone() -> list[Line]:
    """A fresh clone passes what continuous integration runs, in its time."""
    with tempfile.TemporaryDirectory(prefix="infinistore-clone-") as folder:
        run(["git", "clone", "-q", str(ROOT), folder])
        start = time.monotonic()
        status = subprocess.run(
            ["./.ci/run"], cwd=folder, stdin=subprocess.DEVNULL, stdout=2
        ).returncode
        minutes = (time.monotonic() - start) / 60
    return [
        Line(
            "a fresh clone's .ci/run",
            f"exit status {status} after {minutes:.1f} min",
            "0 within 30 min",
            ok=status == 0 and minutes < 30,
        )
    ]


PROOFS = (
    Proof("demo", "prefill and decode apart give the tokens of a plain vLLM", demo),
    Proof(
        "vllm",
        "equality with hit counts, twins that must fail, restarts, preemption",
        by_tests("tests/e2e/test_vllm_pd.py", "tests/e2e/test_vllm_reuse.py"),
    ),
    Proof(
        "survival",
        "a vLLM outlives its store: killed, empty, full, damaged, late, silent; tokens stay equal",
        by_tests("tests/e2e/test_vllm_survival.py"),
    ),
    Proof(
        "layerwise",
        "layer k is filled in the server while layer k+1 waits",
        by_tests(
            "tests/e2e/test_vllm_faults.py"
            "::test_layers_are_in_the_store_while_the_next_ones_compute"
        ),
    ),
    Proof("cpu", "the connector adds 1 % of CPU at most, and a hit is bound by compute", cpu),
    Proof("peers", "not behind MooncakeStoreConnector", peers),
    Proof(
        "kill",
        "a killed writer's reservations are gone within a second",
        by_tests(
            "tests/faults/test_killed_writer.py",
            "tests/e2e/test_vllm_faults.py"
            "::test_a_prefill_killed_in_its_save_leaves_nothing_and_decode_computes",
        ),
    ),
    Proof(
        "faults",
        "every mistake gets a clear error, and the server lives on; every known fault has its test",
        by_tests(
            "tests/faults/test_clear_errors.py",
            "tests/unit/test_faults_page.py::test_every_fault_names_tests_that_exist_or_says_why_not",
        ),
    ),
    Proof("integrity", "verified reads keep 95 % of the speed of others", integrity),
    Proof("eviction", "reuse ahead of every published policy; 96 % usable", eviction),
    Proof("bench", "near the machine's limits, ahead of other stores", bench),
    Proof(
        "manners",
        "idle costs nothing, starts are quick, clients are small, imports are silent",
        by_tests("tests/e2e/test_manners.py"),
    ),
    Proof("clone", "a fresh clone passes, in its time", clone),
)


def commit() -> str:
    """The commit, marked if the tree differs from it."""
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return shown.stdout.strip() or "unknown"


def prove(proof: Proof, reuse: bool) -> list[Line]:
    """The lines of one proof; remembered with the commit that they are about."""
    record = FOUND / f"{proof.name}.json"
    if reuse and record.exists():
        kept = json.loads(record.read_text())
        if kept["commit"] == commit() and "dirty" not in kept["commit"]:
            return [Line(**line) for line in kept["lines"]]
    print(f"==> {proof.name}: {proof.promise}", file=sys.stderr, flush=True)
    lines = proof.find() or [Line(proof.name, "no figure", "a figure", ok=False)]
    FOUND.mkdir(parents=True, exist_ok=True)
    document = {"commit": commit(), "lines": [asdict(line) for line in lines]}
    record.write_text(json.dumps(document, indent=1) + "\n")
    return lines


def print_table(found: list[tuple[Proof, list[Line]]]) -> None:
    for proof, lines in found:
        print(f"\n{proof.name}: {proof.promise}")
        for line in lines:
            figure = line.figure if len(line.figure) <= WIDTH else line.figure[: WIDTH - 3] + "..."
            verdict = "ok   " if line.ok else "SHORT"
            print(f"  {verdict}  {line.name}: {figure}  (target: {line.target})")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [proof.name for proof in PROOFS]
    parser.add_argument("names", nargs="*", metavar="PROOF", help=f"of {', '.join(names)}")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--reuse", action="store_true", help="where this commit was proven before")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no proof is named {', '.join(sorted(unknown))}")
    chosen = [proof for proof in PROOFS if given.all or proof.name in given.names]
    if not chosen:
        parser.error(f"name a proof ({', '.join(names)}), or give --all")
    found = [(proof, prove(proof, given.reuse)) for proof in chosen]
    print_table(found)
    lines = [line for _, of_proof in found for line in of_proof]
    short = sum(not line.ok for line in lines)
    print(f"\n{len(lines)} lines, {short} short")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
