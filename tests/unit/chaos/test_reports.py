"""What client processes tell the harness arrives in its tally, and fails the run if it must."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import pytest

from chaos.checker import Finding
from chaos.faults import PROCESS_FAULTS
from chaos.proxy import FAULTS
from chaos.report import LONG_RUN_MINUTES, quantile, report, report_unfenced
from chaos.reports import Reporter
from chaos.tally import Tally

KINDS = (*PROCESS_FAULTS, *FAULTS, "cancelled read")


def test_counts_and_findings_arrive() -> None:
    reading, writing = os.pipe()
    with open(reading) as lines:
        reporter = Reporter(writing)
        reporter.count("read", "ok", 3)
        reporter.count("cancel", "done")
        reporter.find(Finding("wrong", "kept-0-8-1: 5 wrong bytes", 5))
        reporter.flush()
        os.close(writing)
        tally = Tally()
        for line in lines:
            tally.take(json.loads(line))
    assert tally.operations == {"read ok": 3, "cancel done": 1}
    assert tally.faults["cancelled read"] == 1
    assert [asdict(f) for f in tally.findings] == [
        {"kind": "wrong", "what": "kept-0-8-1: 5 wrong bytes", "wrong_bytes": 5}
    ]
    found = report(tally, "seed", 1, 1)
    assert found.figures["wrong_bytes"] == 5
    assert found.lines()[-1].startswith("chaos: FAILED: 1 wrong or unwanted bytes: 4 operations")


@pytest.mark.parametrize(
    "kind", ["wrong", "touched", "stale", "lease", "corrupt", "leak", "fence", "hang", "unexpected"]
)
def test_each_finding_fails_a_run(kind: str) -> None:
    tally = Tally()
    tally.find(kind, "what")
    assert len(report(tally, "seed", 1, 1).failures) == 1


def test_slow_recovery_fails_a_run() -> None:
    tally = Tally()
    for _ in range(99):
        tally.recovered("killed client", 0.1)
    tally.recovered("killed client", 1.0)
    assert report(tally, "seed", 1, 1).failures == []
    tally.recovered("killed client", 1.0)
    assert report(tally, "seed", 1, 1).failures == ["recovery takes 1000.0 ms (p99)"]


def test_a_long_run_needs_enough_of_every_fault() -> None:
    tally = Tally()
    for kind in KINDS:
        tally.fault(kind, 100)
    assert report(tally, "seed", 20, LONG_RUN_MINUTES).failures == []
    tally.faults[KINDS[0]] = 99
    assert report(tally, "seed", 1, 1).failures == []
    assert report(tally, "seed", 20, LONG_RUN_MINUTES).failures == [
        f"fewer than 100 faults of {KINDS[0]}"
    ]


def test_without_fences_harm_must_be_seen() -> None:
    tally = Tally()
    tally.find("leak", "what")
    assert report_unfenced(tally, "seed", 1).failures
    tally.find("corrupt", "what")
    assert report_unfenced(tally, "seed", 1).failures == []


def test_quantiles() -> None:
    assert quantile([], 0.99) == 0
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(list(range(1, 101)), 0.99) == 99
