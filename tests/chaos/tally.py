"""What a run has seen so far, collected from every thread and process of it."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Any

from chaos.checker import Finding


class Tally:
    """Counts, findings and times; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.operations: Counter[str] = Counter()  # "verb outcome"
        self.faults: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.recoveries_s: defaultdict[str, list[float]] = defaultdict(list)
        self.failed_fast_s: list[float] = []
        self.audits = 0

    def take(self, line: dict[str, Any]) -> None:
        """One line of a client process, if it counts or found something."""
        if line["line"] == "tally":
            with self._lock:
                self.operations.update(line["counts"])
                self.faults["cancelled read"] += line["counts"].get("cancel done", 0)
        elif line["line"] == "finding":
            self.find(line["kind"], line["what"], line["wrong_bytes"])

    def find(self, kind: str, what: str, wrong_bytes: int = 0) -> None:
        with self._lock:
            self.findings.append(Finding(kind, what, wrong_bytes))

    def fault(self, kind: str, number: int = 1) -> None:
        with self._lock:
            self.faults[kind] += number

    def recovered(self, kind: str, seconds: float) -> None:
        with self._lock:
            self.recoveries_s[kind].append(seconds)

    def count_of(self, *kinds: str) -> int:
        """How many findings of these kinds there are."""
        with self._lock:
            return sum(finding.kind in kinds for finding in self.findings)
