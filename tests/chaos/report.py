"""A run's figures: as text, as JSON, and whether they are what they must be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chaos.audit import PAGE_BYTES
from chaos.faults import PROCESS_FAULTS
from chaos.proxy import FAULTS
from chaos.tally import Tally

RECOVERY_P99_S_MAX = 1.0
FAULTS_MIN = 100  # of each kind
LONG_RUN_MINUTES = 20.0  # from here on
_SHOWN_MAX = 20
_WRONG = ("wrong", "touched", "stale", "lease")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What is printed; `failures` says in words what must not be."""

    figures: dict[str, Any]
    failures: list[str]

    @property
    def summary(self) -> str:
        figures = self.figures
        counts = (
            f"{figures['operations']} operations, {sum(figures['faults'].values())} faults, "
            f"{figures['wrong_bytes']} wrong bytes, {figures['leaked_pages']} leaked pages, "
            f"{figures['hung_calls']} hung calls, recovery p99 {figures['recovery']['p99_ms']} ms"
        )
        if "damaged_without_fences" in figures:
            counts = f"damage seen {figures['damaged_without_fences']} times, {counts}"
        verdict = f"FAILED: {'; '.join(self.failures)}" if self.failures else "ok"
        return f"chaos: {verdict}: {counts}"

    def lines(self) -> list[str]:
        """The text, whose last line sums up."""
        figures = self.figures
        lines = [f"seed {figures['seed']}, {figures['minutes']:.1f} minutes", "", "operations"]
        lines += [f"  {count:>9} {name}" for name, count in figures["outcomes"].items()]
        lines += ["", "faults"]
        lines += [f"  {count:>9} {name}" for name, count in figures["faults"].items()]
        lines += ["", "recovery                   n    p50 ms    p99 ms    max ms"]
        for name, times in {**figures["recoveries"], "all": figures["recovery"]}.items():
            values = "".join(f"{times[f'{each}_ms']:>10}" for each in ("p50", "p99", "max"))
            lines.append(f"  {name:<20}{times['n']:>6}{values}")
        lines += ["", f"{figures['audits']} audits of the pool's pages"]
        lines += [f"found: {text}" for text in figures["findings"][:_SHOWN_MAX]]
        if (more := len(figures["findings"]) - _SHOWN_MAX) > 0:
            lines.append(f"and {more} more")
        return [*lines, "", self.summary]


def times_of(values: Sequence[float]) -> dict[str, Any]:
    def ms(seconds: float) -> float:
        return round(1000 * seconds, 1)

    return {
        "n": len(values),
        "p50_ms": ms(quantile(values, 0.5)),
        "p99_ms": ms(quantile(values, 0.99)),
        "max_ms": ms(max(values, default=0.0)),
    }


def report(
    tally: Tally,
    seed: str,
    minutes: float,
    asked_minutes: float,
    kinds: tuple[str, ...] = (*PROCESS_FAULTS, *FAULTS, "cancelled read"),
    faults_min: int = FAULTS_MIN,
) -> Report:
    """Of a run with fences; a long one has to have had so many faults of each of these kinds."""
    every = [seconds for times in tally.recoveries_s.values() for seconds in times]
    recoveries = {kind: times_of(times) for kind, times in sorted(tally.recoveries_s.items())}
    figures: dict[str, Any] = {
        "seed": seed,
        "minutes": minutes,
        "operations": sum(tally.operations.values()),
        "outcomes": dict(sorted(tally.operations.items())),
        "faults": dict(sorted(tally.faults.items())),
        "wrong_bytes": sum(f.wrong_bytes for f in tally.findings if f.kind in _WRONG),
        "leaked_pages": -(
            -sum(f.wrong_bytes for f in tally.findings if f.kind == "leak") // PAGE_BYTES
        ),
        "hung_calls": tally.count_of("hang"),
        "recovery": times_of(every),
        "recoveries": recoveries | {"calls of a dead server": times_of(tally.failed_fast_s)},
        "audits": tally.audits,
        "findings": [f"{f.kind}: {f.what}" for f in tally.findings],
    }
    return Report(figures, _failures(tally, figures, asked_minutes, kinds, faults_min))


def _failures(
    tally: Tally,
    figures: dict[str, Any],
    asked_minutes: float,
    kinds: tuple[str, ...],
    faults_min: int,
) -> list[str]:
    named = {
        "wrong or unwanted bytes": tally.count_of(*_WRONG),
        "values damaged without a cause": tally.count_of("corrupt"),
        "leaks": tally.count_of("leak"),
        "missing fences": tally.count_of("fence"),
        "hung calls": tally.count_of("hang"),
        "outcomes that make no sense": tally.count_of("unexpected"),
    }
    failures = [f"{count} {name}" for name, count in named.items() if count]
    if figures["recovery"]["p99_ms"] >= 1000 * RECOVERY_P99_S_MAX:
        failures.append(f"recovery takes {figures['recovery']['p99_ms']} ms (p99)")
    if asked_minutes >= LONG_RUN_MINUTES:
        few = [kind for kind in kinds if tally.faults[kind] < faults_min]
        if few:
            failures.append(f"fewer than {faults_min} faults of {', '.join(few)}")
    return failures


def report_unfenced(tally: Tally, seed: str, minutes: float) -> Report:
    """Of a run without fences, which has to find what they are for."""
    plain = report(tally, seed, minutes, 0)
    found = tally.count_of("wrong", "corrupt")
    failures = [] if found else ["without fences nothing was damaged: the harness sees nothing"]
    return Report({**plain.figures, "damaged_without_fences": found}, failures)
