"""What a client process tells the harness: lines of JSON on its standard output."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from dataclasses import asdict

from chaos.checker import Finding

_TALLY_INTERVAL_S = 0.2


class Reporter:
    """Sends findings at once, and counts of operations a few times a second."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._tally: Counter[str] = Counter()
        self._sent_at = 0.0

    def count(self, verb: str, outcome: str, number: int = 1) -> None:
        """Operations by verb and outcome, one a key."""
        with self._lock:
            self._tally[f"{verb} {outcome}"] += number
            if time.monotonic() - self._sent_at > _TALLY_INTERVAL_S:
                self._send_tally()

    def find(self, finding: Finding) -> None:
        self.say("finding", **asdict(finding))

    def say(self, line: str, /, **facts: object) -> None:
        # One write for a line: lines of threads, and of one that is killed, stay whole.
        os.write(self._fd, json.dumps({"line": line, **facts}).encode() + b"\n")

    def flush(self) -> None:
        with self._lock:
            self._send_tally()

    def _send_tally(self) -> None:
        self._sent_at = time.monotonic()
        if self._tally:
            self.say("tally", counts=dict(self._tally))
            self._tally.clear()
