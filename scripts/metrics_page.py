"""Prints docs/metrics.md, the table of every metric, from the server's own.

python scripts/metrics_page.py > docs/metrics.md
"""

from __future__ import annotations

from collections.abc import Sequence

from infinistore.server.prometheus import (
    METRICS,
    NAMESPACE_METRICS,
    PREFIX,
    TENANT_METRICS,
    Metric,
)

HEAD = """\
# Metrics

Made by `scripts/metrics_page.py` from `src/infinistore/server/prometheus.py`; a test keeps them
equal, and asks a server whether it exports another.

`GET /metrics` on the admin port, as Prometheus text (with a token: `Authorization: Bearer`).
Counters count from the server's start. `GET /stats` and `infinistore status --json` have the same
numbers. Metrics of the cluster are there if the server is a node of one; those by namespace for the
20 largest, the rest together as `(others)`; those by tenant if there are tenants.
"""
TABLE = "| name | kind | labels | meaning |\n|---|---|---|---|"


def rows(metrics: Sequence[Metric]) -> list[str]:
    """One for each name, with the labels of all its samples."""
    labels: dict[str, list[str]] = {}
    firsts: dict[str, Metric] = {}
    for metric in metrics:
        firsts.setdefault(metric.name, metric)
        known = labels.setdefault(metric.name, [])
        if metric.labels:
            known.append(metric.labels.partition("=")[2].strip('"'))
    shown = []
    for name, first in firsts.items():
        label = first.labels.partition("=")[0]
        values = f"`{label}`: {', '.join(labels[name])}" if label else ""
        shown.append(f"| `{PREFIX}{name}` | {first.kind} | {values} | {first.help} |")
    return shown


def page() -> str:
    spaces = [
        f"| `{PREFIX}{metric.name}` | {metric.kind} | `{label}` | {metric.help} |"
        for label, metrics in (("namespace", NAMESPACE_METRICS), ("tenant", TENANT_METRICS))
        for metric in metrics
    ]
    own = [
        f"| `{PREFIX}uptime_seconds` | gauge |  | Time since the server's start. |",
        f"| `{PREFIX}draining` | gauge |  | 1: it only finishes what has begun. |",
    ]
    return "\n".join([HEAD, TABLE, *rows(METRICS), *spaces, *own]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
