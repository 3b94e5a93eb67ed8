"""Puts what the last `make bench`, `bench-check` and `bench-sweep` found in docs/benchmarks.md."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
CHARTS = ROOT / "docs" / "benchmarks.svg"
# What a target leaves in build/, by the name of its part of the page.
TABLES = {
    "make bench": "bench.md",
    "make bench-check": "bench-check.md",
    "make bench-sweep": "bench-sweep.md",
}
SHOWN_OF_SWEEP = "### Beside"  # the other series have hundreds of rows


def put(page: str, name: str, text: str) -> str:
    """The page with `text` as its part `name`. Raises ValueError if it has no such part."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {begin} ... {end}")
    return f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}"


def of_sweep(text: str) -> str:
    """The charts, and of the tables the one beside limits and peers."""
    about, _, rest = text.partition(SHOWN_OF_SWEEP)
    table = SHOWN_OF_SWEEP + rest.partition("\n### ")[0]
    return f"![charts of the table below](benchmarks.svg)\n\n{about}{table}"


def main() -> None:
    page, taken = PAGE.read_text(), []
    for name, file in TABLES.items():
        found = ROOT / "build" / file
        if found.exists():
            text = found.read_text()
            page = put(page, name, of_sweep(text) if name == "make bench-sweep" else text)
            taken.append(name)
    if not taken:
        sys.exit(f"build/ has nothing to show; run: {', '.join(TABLES)}")
    charts = ROOT / "build" / "bench-sweep.svg"
    if charts.exists():
        shutil.copy(charts, CHARTS)
    PAGE.write_text(page)
    print(f"put into {PAGE}: {', '.join(taken)}")


if __name__ == "__main__":
    main()
