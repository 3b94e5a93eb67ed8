"""What `make test-operations` has shown, by what must hold: a line each, from pytest's report.

python scripts/operations_summary.py REPORT.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

# By the beginning of a test's place; the first that fits counts.
TOPICS = {
    "tests.e2e.test_every_command": "every command: a server under load, a cluster, nothing at all",
    "tests.e2e.test_explain": "explain names the true cause",
    "tests.unit.cli.test_cli_explain": "explain names the true cause",
    "tests.unit.test_what_if": "what-if within 2 points on three traces",
    "tests.operations.test_page": "the page in Chromium: its numbers are the command line's",
    "tests.operations.test_deploy": "Grafana's numbers, manifests, unit, container file",
    "tests.operations.test_security": "without a token nothing is served, and nothing leaks",
    "tests.operations.test_tenants": "a tenant's token and quota reach nothing of another's",
    "tests.conformance.test_readers": "readers write nothing",
    "tests.operations.test_certificate": "TLS on both ports, certificates read again",
    "tests.faults.test_tls": "TLS on both ports, certificates read again",
    "tests.unit.connectors.test_connector_spans": "OpenTelemetry's spans",
    "tests.e2e.test_readme": "the README's examples run",
    "tests.e2e.test_verify": "verify finds what is damaged",
    "tests.e2e": "a server's life and its commands",
    "tests.unit.cli": "a server's life and its commands",
    "tests.unit.server": "a server's life and its commands",
}
OTHER = "other tests"


def topic_of(place: str) -> str:
    """What a test is about."""
    return next((topic for begin, topic in TOPICS.items() if place.startswith(begin)), OTHER)


def outcome_of(case: ElementTree.Element) -> str:
    """passed, failed or skipped."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def summary(report: Path) -> list[str]:
    """A line for each topic that has tests, in the order of the table."""
    counts: dict[str, Counter[str]] = {topic: Counter() for topic in (*TOPICS.values(), OTHER)}
    for case in ElementTree.parse(report).iter("testcase"):
        counts[topic_of(case.get("classname", ""))][outcome_of(case)] += 1
    lines = []
    for topic, count in counts.items():
        told = ", ".join(
            f"{count[outcome]} {outcome}"
            for outcome in ("passed", "failed", "skipped")
            if count[outcome]
        )
        if told:
            lines.append(f"  {topic:<62} {told}")
    return lines


if __name__ == "__main__":
    print("\n".join(summary(Path(sys.argv[1]))))
