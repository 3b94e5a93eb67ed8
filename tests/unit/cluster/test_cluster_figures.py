"""The figures of the cluster's proof, from made-up counts and times."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest


@pytest.fixture(scope="module")
def proof() -> Any:
    """The package of scripts/, by the name of one of its modules."""
    folder = str(Path(__file__).parents[3] / "scripts")
    sys.path.insert(0, folder)
    yield lambda name: importlib.import_module(f"cluster.{name}")
    sys.path.remove(folder)


def test_imbalance_is_the_busiest_by_the_mean(proof: Any) -> None:
    figures = proof("figures")
    assert figures.imbalance({"a": 30, "b": 10}) == 1.5
    assert math.isnan(figures.imbalance({"a": 0}))
    assert figures.part({"a": 30, "b": 10}, "b") == 0.5
    assert figures.percentile([3, 1, 2], 0.5) == 2
    assert math.isnan(figures.percentile([], 0.5))


def test_a_line_without_a_figure_does_not_hold(proof: Any) -> None:
    figures = proof("figures")
    assert figures.at_most("x", 1.0, 1.0).holds
    assert not figures.at_most("x", 1.1, 1.0).holds
    assert not figures.at_most("x", math.nan, 1.0).holds
    assert figures.at_most("x", math.inf, 1.0, " s").text().endswith("short")


def test_first_answers_are_each_clients_own(proof: Any) -> None:
    figures, asked = proof("figures"), proof("rig").Asked
    requests = [
        asked(0, "g", 2.0, 0.1, 0),
        asked(0, "g", 1.0, 0.9, 0),
        asked(1, "g", 1.5, 0.2, 8),
        asked(1, "other", 1.0, 5.0, 0),
    ]
    assert sorted(figures.first_answers(requests, {"g"})) == [0.2, 0.9]
    groups = {f"zipf-{number}" for number in range(50)}
    parts = [figures.owned_by(name, ["a", "b"], groups) for name in ("a", "b")]
    assert parts[0] | parts[1] == groups
    assert not parts[0] & parts[1]


def test_loads_follow_their_seeds(proof: Any) -> None:
    loads = proof("loads")
    first = [next(loads.zipf_chains(1, 0, 50, 2)) for _ in range(3)]
    assert first == [next(loads.zipf_chains(1, 0, 50, 2)) for _ in range(3)]
    assert first[0][0].startswith(b"{zipf-")
    assert loads.keys_of(range(9))[8] == b"{trace-8}8"
    contents = loads.Contents(64)
    assert contents.of(b"a").tolist() == contents.of(b"a").tolist()
    assert contents.of(b"a").tolist() != contents.of(b"b").tolist()


def test_a_timeline_is_svg(proof: Any) -> None:
    timeline = proof("timeline")
    panel = timeline.Panel("a & b", {"n1": [(0.0, 1.0), (2.0, 3.0)]}, 1.25)
    picture = minidom.parseString(timeline.as_svg([panel], [(1.0, "n<1 killed")]))
    assert len(picture.getElementsByTagName("polyline")) == 1
    with pytest.raises(ValueError, match="nothing"):
        timeline.as_svg([timeline.Panel("x", {})], [])
