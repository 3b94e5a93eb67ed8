"""Puts the table of the last `make bench` (build/bench.md) into docs/benchmarks.md."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- begin: make bench -->", "<!-- end: make bench -->"


def main() -> None:
    table = ROOT / "build" / "bench.md"
    if not table.exists():
        sys.exit(f"{table} is missing; run: make bench")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        sys.exit(f"{PAGE} has no {BEGIN} ... {END}")
    PAGE.write_text(f"{head}{BEGIN}\n\n{table.read_text()}\n{END}{tail}")


if __name__ == "__main__":
    main()
