"""Targets of the store's index, from what the C++ program bench_store prints."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from infinistore.bench.checks.line import Line, at_most, not_measured
from infinistore.bench.checks.scope import Scope

KEYS, QUICK_KEYS = 1_000_000, 100_000
RATE_MIN_M_S = 5.0
BYTES_A_KEY_MAX = 200.0  # 200 MB a million keys
TIMEOUT_S = 180.0

_RATE = re.compile(r"^(?P<name>\S.*?)\s+(?P<rate>[\d.]+) M/s a core", re.M)
_MEMORY = re.compile(r"^index memory\s+(?P<bytes>[\d.]+) bytes a key", re.M)
# Each kind of lookup by its best line: requests of many keys look them up in batches.
LOOKUPS = {
    "exists, present": re.compile(r"exists\b.*\bpresent"),
    "exists, absent": re.compile(r"exists\b.*\babsent"),
    "find": re.compile(r"find\b(?!.*all threads)"),
    "match_prefix": re.compile(r"match_prefix\b"),
}


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """Million lookups a second and core by name, and bytes of index a key."""

    rates: dict[str, float]
    bytes_a_key: float | None


def parse(text: str) -> IndexFigures:
    """What bench_store printed."""
    rates = {found["name"]: float(found["rate"]) for found in _RATE.finditer(text)}
    memory = _MEMORY.search(text)
    return IndexFigures(rates, float(memory["bytes"]) if memory else None)


def find(scope: Scope) -> list[Line]:
    """Runs bench_store on a million keys and one thread."""
    program = scope.bench_store
    if not program.exists():
        return [not_measured("index", f"there is no {program}; run: make build")]
    keys = QUICK_KEYS if scope.quick else KEYS
    scope.on_step(f"the index alone, {keys:,} keys")
    done = subprocess.run(
        [str(program), str(keys), "1"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode:
        return [not_measured("index", done.stderr or f"exit status {done.returncode}")]
    return lines_of(parse(done.stdout), keys)


def lines_of(figures: IndexFigures, keys: int) -> list[Line]:
    """A line for each kind of lookup, and one for memory; a figure that is missing is short."""
    lines = []
    target = f">= {RATE_MIN_M_S:g} M/s"
    for lookup, pattern in LOOKUPS.items():
        rates = {name: rate for name, rate in figures.rates.items() if pattern.match(name)}
        name = f"index {lookup}, {keys:,} keys"
        if not rates:
            lines.append(not_measured(name, "bench_store printed no such line", target))
            continue
        best = max(rates, key=lambda one: rates[one])
        shown = f"{rates[best]:.2f} M/s a core ({best})"
        ratio = f"{rates[best] / RATE_MIN_M_S:.2f}"
        lines.append(Line(name, shown, "", ratio, target, rates[best] >= RATE_MIN_M_S))
    if figures.bytes_a_key is None:
        return [*lines, not_measured("index memory", "bench_store printed no such line")]
    wanted, is_ok = at_most(figures.bytes_a_key, BYTES_A_KEY_MAX, "bytes a key")
    return [
        *lines,
        Line("index memory", f"{figures.bytes_a_key:.1f} bytes a key", "",
             f"{figures.bytes_a_key / BYTES_A_KEY_MAX:.2f}", wanted, is_ok),
    ]  # fmt: skip
