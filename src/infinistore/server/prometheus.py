"""A snapshot as Prometheus text: the names that dashboards and alerts hold on to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "infinistore_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter of the snapshot, as it is exposed."""

    source: str
    name: str
    kind: str  # gauge or counter
    help: str


METRICS = (
    Metric("capacity_bytes", "pool_capacity_bytes", "gauge", "Memory of the pool."),
    Metric("populated_bytes", "pool_populated_bytes", "gauge", "Memory of the pool made ready."),
    Metric("free_bytes", "pool_free_bytes", "gauge", "Memory that no value holds."),
    Metric("reserved_bytes", "pool_reserved_bytes", "gauge", "Memory of values being written."),
    Metric("sealed_bytes", "pool_sealed_bytes", "gauge", "Memory of values that can be read."),
    Metric(
        "quarantined_bytes",
        "pool_quarantined_bytes",
        "gauge",
        "Memory that a vanished writer may still touch.",
    ),
    Metric("keys", "keys", "gauge", "Keys that can be read."),
    Metric("namespaces", "namespaces", "gauge", "Namespaces seen."),
    Metric("staged_values", "staged_values", "gauge", "Values being written."),
    Metric("pins", "pins", "gauge", "Holds on values by readers and leases."),
    Metric("leases", "leases", "gauge", "Leases that clients hold."),
    Metric("sessions", "sessions", "gauge", "Connections being served."),
    Metric("hits", "hits_total", "counter", "Keys asked for and found."),
    Metric("misses", "misses_total", "counter", "Keys asked for and not found."),
    Metric("seals", "seals_total", "counter", "Values that became readable."),
    Metric("exists", "already_present_total", "counter", "Writes of keys that were there."),
    Metric("evictions", "evictions_total", "counter", "Values evicted."),
    Metric("evicted_bytes", "evicted_bytes_total", "counter", "Bytes of values evicted."),
    Metric("erased", "erased_total", "counter", "Values erased by a caller's wish."),
    Metric("aborted", "aborted_total", "counter", "Values given up before they were whole."),
    Metric("refused", "refused_total", "counter", "Writes refused for want of space."),
    Metric("corrupt", "corrupt_total", "counter", "Values dropped with a wrong checksum."),
)
_KNOWN = {metric.source: metric for metric in METRICS}
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


def exposition(snapshot: Mapping[str, int], extra: Mapping[str, float]) -> str:
    """The text of /metrics: the snapshot's counters, then `extra` gauges by their full name."""
    lines: list[str] = []
    known = [metric for metric in METRICS if metric.source in snapshot]
    others = [_unnamed(source) for source in sorted(snapshot) if source not in _KNOWN]
    for metric in (*known, *others):
        lines.extend(_lines(metric.name, metric.kind, metric.help, snapshot[metric.source]))
    for name, value in extra.items():
        lines.extend(_lines(name, "gauge", "About this server.", value))
    return "\n".join(lines) + "\n"


def _unnamed(source: str) -> Metric:
    """A counter that this table does not know yet is shown rather than lost."""
    return Metric(source, _UNFIT.sub("_", source), "untyped", f"Native counter {source}.")


def _lines(name: str, kind: str, text: str, value: float) -> Iterable[str]:
    full = PREFIX + name
    return (f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value}")
