"""The exposition text, by the grammar of its format."""

from __future__ import annotations

import re

from infinistore.server.prometheus import METRICS, exposition

SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-z]+=\"[a-zA-Z0-9.+-]+\"\})? -?\d+(\.\d+)?(e-?\d+)?"
)


def test_every_metric_has_help_and_type_once_and_samples_under_it() -> None:
    text = exposition({metric.source: 1 for metric in METRICS}, {"uptime_seconds": 1.5})
    assert text.endswith("\n")
    seen: list[str] = []
    samples = 0
    for line in text.splitlines():
        if line.startswith("# HELP"):
            seen.append(line.split()[2])
        elif line.startswith("# TYPE"):
            assert line.split()[2] == seen[-1]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            suffixes = ("", "_sum", "_count", "_bucket")
            assert match["name"] in [seen[-1] + suffix for suffix in suffixes]
            samples += 1
    assert len(set(seen)) == len(seen), "a metric stands in two places"
    assert samples == len(METRICS) + 1


def test_names_say_what_they_count() -> None:
    kinds = {metric.name: (metric.kind, metric.help) for metric in METRICS}
    for metric in METRICS:
        assert kinds[metric.name] == (metric.kind, metric.help), metric.name
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name
        if "bytes" in metric.source:
            assert "_bytes" in metric.name
    samples = {(metric.name, metric.suffix, metric.labels) for metric in METRICS}
    assert len(samples) == len(METRICS)


def test_labels_and_units_are_those_of_prometheus() -> None:
    text = exposition({"requests_put": 3, "put_us_p99": 2500, "put_us_count": 9}, {})
    assert 'infinistore_requests_total{kind="put"} 3\n' in text
    assert 'infinistore_put_seconds{quantile="0.99"} 0.0025\n' in text
    assert "infinistore_put_seconds_count 9\n" in text


def test_a_counter_that_is_absent_is_left_out_and_an_unknown_one_shown() -> None:
    text = exposition({"keys": 5, "odd name": 2}, {})
    assert "infinistore_keys 5" in text
    assert "infinistore_odd_name 2" in text
    assert "infinistore_hits_total" not in text
