"""The exposition text, by the grammar of its format."""

from __future__ import annotations

import re

from infinistore.server.prometheus import METRICS, exposition

SAMPLE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]* -?\d+(\.\d+)?")


def test_every_metric_has_help_type_and_one_sample() -> None:
    text = exposition({metric.source: 1 for metric in METRICS}, {"uptime_seconds": 1.5})
    assert text.endswith("\n")
    lines = text.splitlines()
    assert len(lines) == 3 * (len(METRICS) + 1)
    for help_line, type_line, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = sample.split()[0]
        assert help_line.startswith(f"# HELP {name} ")
        assert type_line.split()[2] == name
        assert SAMPLE.fullmatch(sample)


def test_names_are_unique_and_say_what_they_count() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name
        if "bytes" in metric.source:
            assert "_bytes" in metric.name


def test_a_counter_that_is_absent_is_left_out_and_an_unknown_one_shown() -> None:
    text = exposition({"keys": 5, "odd name": 2}, {})
    assert "infinistore_keys 5" in text
    assert "infinistore_odd_name 2" in text
    assert "infinistore_hits_total" not in text
