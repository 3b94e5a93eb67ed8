"""What the checks found, as JSON and as Markdown; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from infinistore.bench.checks.line import as_markdown as lines_as_markdown
from infinistore.bench.checks.table import Found


def summary(found: Sequence[Found]) -> str:
    """How many lines there are, and how many are short."""
    lines = [line for one in found for line in one.lines]
    seconds = sum(one.seconds for one in found)
    return f"{len(lines)} targets, {sum(not line.ok for line in lines)} short; {seconds:.0f} s"


def as_json(found: Sequence[Found], about: Mapping[str, str]) -> dict[str, Any]:
    """Every line under its check; `about` says where and how they were found."""
    return {
        "about": dict(about),
        "checks": [
            {
                "name": one.check.name,
                "about": one.check.about,
                "seconds": round(one.seconds, 1),
                "lines": [{**asdict(line), "verdict": line.verdict} for line in one.lines],
            }
            for one in found
        ],
    }


def as_markdown(found: Sequence[Found], about: Mapping[str, str]) -> str:
    """A table a check, under a line that says where and how they were found."""
    where = ", ".join(f"{name} {value}" for name, value in about.items())
    parts = [
        f"{one.check.name}: {one.check.about}\n\n{lines_as_markdown(one.lines)}" for one in found
    ]
    return "\n".join([f"{where}. {summary(found)}.\n", *parts])
