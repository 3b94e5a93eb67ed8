"""The checks that there are, and running them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infinistore.bench.checks import clients, index, integrity, latency, limits, peers
from infinistore.bench.checks.line import Line, not_measured
from infinistore.bench.checks.scope import Check, Scope
from infinistore.errors import InfiniStoreError

CHECKS: tuple[Check, ...] = (
    Check("limits", "shares of the machine's limits", limits.find),
    Check("latency", "single calls beside bare round trips", latency.find),
    Check("integrity", "reading with verification beside without", integrity.find),
    Check("index", "lookups a core, bytes a key", index.find),
    Check("peers", "ahead of other stores and transfer libraries", peers.find),
    Check("clients", "many clients beside one", clients.find),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The lines of one check, and how long they took."""

    check: Check
    lines: list[Line]
    seconds: float


def run_checks(
    checks: Sequence[Check], scope: Scope, on_found: Callable[[Found], None] = lambda found: None
) -> list[Found]:
    """All of them, one after another; a check that fails is one line, which is short."""
    found = []
    for check in checks:
        start = time.monotonic()
        try:
            lines = check.find(scope)
        except (InfiniStoreError, OSError, TimeoutError) as error:
            lines = [not_measured(check.name, str(error))]
        found.append(Found(check, lines, time.monotonic() - start))
        on_found(found[-1])
    return found
