"""Figures that tests find beside their verdict, for scripts/prove.py to print."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

FIGURES_VARIABLE = "INFINISTORE_FIGURES"

RecordFigure = Callable[..., None]


@pytest.fixture
def record_figure(request: pytest.FixtureRequest) -> RecordFigure:
    """`record_figure("idle server", "0.02 % of a core", "< 1 %", ok=0.02 < 1)`.

    Asserts `ok` after having written the line down, so that a figure that is short shows as well.
    """

    def record(name: str, figure: str, target: str, *, ok: bool) -> None:
        line = {"name": name, "figure": figure, "target": target, "ok": bool(ok)}
        line["test"] = request.node.name
        if path := os.environ.get(FIGURES_VARIABLE):
            with Path(path).open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        assert ok, f"{name}: {figure}, where {target} is wanted ({request.node.name})"

    return record
