"""A snapshot as Prometheus text: the names that dashboards and alerts hold on to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "infinistore_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter of the snapshot, as it is exposed. Those of one name stand together."""

    source: str
    name: str
    kind: str  # gauge, counter, summary or histogram
    help: str
    suffix: str = ""  # of the sample: a summary's _sum and _count
    labels: str = ""
    scale: float = 1  # from the snapshot's unit to the exposed one


def _latency(source: str, name: str, text: str) -> tuple[Metric, ...]:
    """A histogram of microseconds, as a summary in seconds."""
    return (
        Metric(f"{source}_p50", name, "summary", text, labels='quantile="0.5"', scale=1e-6),
        Metric(f"{source}_p99", name, "summary", text, labels='quantile="0.99"', scale=1e-6),
        Metric(f"{source}_sum", name, "summary", text, suffix="_sum", scale=1e-6),
        Metric(f"{source}_count", name, "summary", text, suffix="_count"),
    )


# Microseconds: what is in the snapshot as put_us_below_16 and so on.
BUCKETS_US = tuple(4**power for power in range(2, 13))


def _histogram(source: str, name: str, text: str) -> tuple[Metric, ...]:
    """The same microseconds as counts of what was quicker than each bound, in seconds."""
    bounds = [(f"{source}_below_{bound}", f"{bound * 1e-6:g}") for bound in BUCKETS_US]
    return (
        *(
            Metric(counter, name, "histogram", text, suffix="_bucket", labels=f'le="{bound}"')
            for counter, bound in (*bounds, (f"{source}_count", "+Inf"))
        ),
        Metric(f"{source}_sum", name, "histogram", text, suffix="_sum", scale=1e-6),
        Metric(f"{source}_count", name, "histogram", text, suffix="_count"),
    )


_REQUESTS = (
    *("hello", "put", "get", "match", "exists", "erase", "lease", "abort", "stats", "ping"),
    "suspect",
)
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
    Metric(
        "unaccounted_bytes",
        "pool_unaccounted_bytes",
        "gauge",
        "By how much free, reserved, quarantined and sealed are not the capacity: 0.",
    ),
    Metric("keys", "keys", "gauge", "Keys that can be read."),
    Metric("namespaces", "namespaces", "gauge", "Namespaces seen."),
    Metric("staged_values", "staged_values", "gauge", "Values being written."),
    Metric("pins", "pins", "gauge", "Holds on values by readers and leases."),
    Metric("leases", "leases", "gauge", "Leases that clients hold."),
    Metric("leased_keys", "leased_keys", "gauge", "Keys that leases hold."),
    Metric("waiting_keys", "waiting_keys", "gauge", "Keys that readers wait for."),
    Metric("workers", "workers", "gauge", "Threads that move bytes."),
    Metric("sessions", "sessions", "gauge", "Connections being served."),
    Metric("open_requests", "open_requests", "gauge", "Requests that are not answered yet."),
    Metric("hits", "hits_total", "counter", "Keys asked for and found."),
    Metric("misses", "misses_total", "counter", "Keys asked for and not found."),
    *(
        Metric(
            f"misses_{cause}",
            "misses_by_cause_total",
            "counter",
            "Misses by what became of the key: never seen, evicted, or erased and the like.",
            labels=f'cause="{cause}"',
        )
        for cause in ("new", "evicted", "erased")
    ),
    Metric("seals", "seals_total", "counter", "Values that became readable."),
    Metric("exists", "already_present_total", "counter", "Writes of keys that were there."),
    Metric("evictions", "evictions_total", "counter", "Values evicted."),
    Metric("evicted_bytes", "evicted_bytes_total", "counter", "Bytes of values evicted."),
    Metric("erased", "erased_total", "counter", "Values erased by a caller's wish."),
    Metric("aborted", "aborted_total", "counter", "Values given up before they were whole."),
    Metric("refused", "refused_total", "counter", "Writes refused for want of space."),
    Metric("corrupt", "corrupt_total", "counter", "Values dropped with a wrong checksum."),
    Metric(
        "false_alarms",
        "false_alarms_total",
        "counter",
        "Values that a reader called damaged, and are not.",
    ),
    Metric("received_bytes", "received_bytes_total", "counter", "Bytes of values taken in."),
    Metric("sent_bytes", "sent_bytes_total", "counter", "Bytes of values given out."),
    Metric(
        "served_bytes_per_s",
        "served_bytes_per_second",
        "gauge",
        "Bytes of values given out a second, by the half-life of heat.",
    ),
    Metric("sessions_begun", "sessions_begun_total", "counter", "Connections accepted."),
    Metric("sessions_refused", "sessions_refused_total", "counter", "Connections turned away."),
    Metric(
        "sessions_unauthorized",
        "sessions_unauthorized_total",
        "counter",
        "Connections refused for their token.",
    ),
    Metric(
        "sessions_stalled", "sessions_stalled_total", "counter", "Connections given up as stuck."
    ),
    Metric(
        "sessions_unfenced",
        "sessions_unfenced_total",
        "counter",
        "Connections that ended while their client could still write.",
    ),
    Metric("late_messages", "late_messages_total", "counter", "Messages about what was over."),
    Metric("protocol_errors", "protocol_errors_total", "counter", "Frames that broke the rules."),
    Metric("overloads", "overloads_total", "counter", "Requests refused at a bound."),
    *(
        Metric(
            f"requests_{kind}",
            "requests_total",
            "counter",
            "Requests by kind.",
            labels=f'kind="{kind}"',
        )
        for kind in _REQUESTS
    ),
    Metric("cluster_nodes", "cluster_nodes", "gauge", "Nodes known, this one among them."),
    Metric(
        "cluster_connected", "cluster_connected", "gauge", "1: etcd answers (a list always does)."
    ),
    Metric(
        "cluster_background_bytes",
        "cluster_background_bytes_total",
        "counter",
        "Bytes of copies and moves sent to other nodes.",
    ),
    Metric("cluster_copies", "cluster_copies", "gauge", "Copies of this node's groups on others."),
    Metric("cluster_copies_held", "cluster_copies_held", "gauge", "Copies of others' groups here."),
    Metric("cluster_copies_made", "cluster_copies_made_total", "counter", "Copies made."),
    Metric(
        "cluster_copies_withdrawn",
        "cluster_copies_withdrawn_total",
        "counter",
        "Copies withdrawn as they cooled.",
    ),
    Metric(
        "cluster_settled_keys",
        "cluster_settled_keys_total",
        "counter",
        "Values sent to the nodes that own them.",
    ),
    *_latency("put_us", "put_seconds", "From a put's arrival to its result."),
    *_latency("get_us", "get_seconds", "From a get's arrival to its last byte."),
    *_histogram("put_us", "put_duration_seconds", "Puts by the time to their result."),
    *_histogram("get_us", "get_duration_seconds", "Gets by the time to their last byte."),
)
_KNOWN = {metric.source: metric for metric in METRICS}
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


def exposition(snapshot: Mapping[str, int], extra: Mapping[str, float]) -> str:
    """The text of /metrics: the snapshot's counters, then `extra` gauges by their full name."""
    lines: list[str] = []
    known = [metric for metric in METRICS if metric.source in snapshot]
    others = [_unnamed(source) for source in sorted(snapshot) if source not in _KNOWN]
    headed = ""
    for metric in (*known, *others):
        if metric.name != headed:
            lines.extend(_head(metric.name, metric.kind, metric.help))
            headed = metric.name
        labels = f"{{{metric.labels}}}" if metric.labels else ""
        value = snapshot[metric.source]
        shown = value if metric.scale == 1 else f"{value * metric.scale:.6g}"
        lines.append(f"{PREFIX}{metric.name}{metric.suffix}{labels} {shown}")
    for name, amount in extra.items():
        lines.extend((*_head(name, "gauge", "About this server."), f"{PREFIX}{name} {amount}"))
    return "\n".join(lines) + "\n"


# Of each namespace, while there are no more than NAMESPACES_SHOWN; the rest is one: "(others)".
NAMESPACE_METRICS = (
    Metric("keys", "namespace_keys", "gauge", "Keys that can be read, by namespace."),
    Metric("bytes", "namespace_bytes", "gauge", "Memory of those keys, by namespace."),
    Metric("hits", "namespace_hits_total", "counter", "Keys asked for and found, by namespace."),
    Metric("misses", "namespace_misses_total", "counter", "Keys not found, by namespace."),
)
NAMESPACES_SHOWN = 20
OTHERS = "(others)"


def namespace_exposition(spaces: Sequence[Mapping[str, Any]]) -> str:
    """The text of the largest namespaces' metrics: a bounded number of labels."""
    order = sorted(spaces, key=lambda space: (-space["bytes"], space["namespace"]))
    shown = {_label(space["namespace"]): space for space in order[:NAMESPACES_SHOWN]}
    rest = order[NAMESPACES_SHOWN:]
    if rest:
        sources = [metric.source for metric in NAMESPACE_METRICS]
        shown[OTHERS] = {source: sum(space[source] for space in rest) for source in sources}
    return _labelled(NAMESPACE_METRICS, "namespace", shown.items())


TENANT_METRICS = (
    Metric("quota_bytes", "tenant_quota_bytes", "gauge", "Memory that a tenant may hold; 0: any."),
    Metric("used_bytes", "tenant_used_bytes", "gauge", "Memory that a tenant holds."),
    Metric(
        "quota_evictions",
        "tenant_quota_evictions_total",
        "counter",
        "Values of a tenant evicted for its own quota.",
    ),
    Metric(
        "quota_evicted_bytes",
        "tenant_quota_evicted_bytes_total",
        "counter",
        "Memory of the values of a tenant evicted for its own quota.",
    ),
)


def tenant_exposition(rows: Sequence[Mapping[str, Any]]) -> str:
    """The text of the tenants' metrics, of whom there are a bounded number; empty without any."""
    labels = [(_label(row["tenant"].encode()), row) for row in rows]
    return _labelled(TENANT_METRICS if rows else (), "tenant", labels)


def _labelled(
    metrics: Sequence[Metric], label: str, rows: Collection[tuple[str, Mapping[str, Any]]]
) -> str:
    """The text of `metrics`, each with a sample for every (value of its label, row)."""
    lines: list[str] = []
    for metric in metrics:
        lines.extend(_head(metric.name, metric.kind, metric.help))
        lines.extend(
            f'{PREFIX}{metric.name}{{{label}="{value}"}} {row[metric.source]}'
            for value, row in rows
        )
    return "".join(f"{line}\n" for line in lines)


def _label(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _unnamed(source: str) -> Metric:
    """A counter that this table does not know yet is shown rather than lost."""
    return Metric(source, _UNFIT.sub("_", source), "untyped", f"Native counter {source}.")


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return (f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}")
