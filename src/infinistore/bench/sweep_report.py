"""A sweep as JSON, as Markdown tables and as charts; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from infinistore.bench.figures import MOVES, Figure
from infinistore.bench.limits import MEMCPY, SOCKET, SOCKETS, STREAMING
from infinistore.bench.peers.table import PEERS
from infinistore.bench.plot import Chart, Line
from infinistore.bench.report import show, show_count
from infinistore.bench.sweep import Call, Point, Series, Sweep
from infinistore.units import format_bytes

TITLES: dict[Series, str] = {
    "peers": "Beside the machine's limits and other stores: one client, batches of 4 MiB",
    "batches": "By block size and batch: one client",
    "clients": "By number of clients: batches of 4 MiB",
}
HEADINGS = (
    "who", "verb", "block", "batch", "clients", "GB/s", "operations/s", "p50 ms", "p99 ms",
    "CPU s/GB c + s",
)  # fmt: skip
WHERE = {"shm": "same host", "tcp": "TCP"}
WHERE_OURS = {"shm": "InfiniStore, shared memory", "tcp": "InfiniStore, TCP"}
CLIENT_SIZES = {4 * 1024, 64 * 1024, 1024**2}
LIMIT_NAMES = (MEMCPY, STREAMING, SOCKET, SOCKETS)


def as_json(
    sweep: Sweep, machine: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "blocks_verified": sweep.blocks_verified,
        "missing": sweep.missing,
        "left_out": sweep.left_out,
        "calls": [asdict(call) for call in sweep.calls],
        "points": [asdict(point) for point in sweep.points],
    }


def as_markdown(sweep: Sweep, machine: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """A table a series, under a line that says where and how it was made."""
    about = ", ".join(f"{name} {value}" for name, value in {**machine, **settings}.items())
    parts = [f"{about}, {sweep.blocks_verified:,} blocks verified.\n"]
    if sweep.missing:
        gone = "; ".join(f"{name}: {why}" for name, why in sweep.missing.items())
        parts.append(f"Not measured: {gone}.\n")
    if sweep.left_out:
        parts.append(f"No time was left for: {'; '.join(sweep.left_out)}.\n")
    parts.append("### Single calls, beside bare round trips\n")
    parts.append(_table(("call", "p50 us", "p99 us"), [_call_cells(call) for call in sweep.calls]))
    for series, title in TITLES.items():
        rows = [cells(point) for point in in_order(sweep.points, series)]
        parts.append(f"### {title}\n")
        parts.append(_table(HEADINGS, rows))
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = [headings, ("---",) * len(headings), *rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in table)


def _call_cells(call: Call) -> tuple[str, ...]:
    return (call.name, *(show(_scaled(figure, 1e6), 1) for figure in (call.p50_s, call.p99_s)))


def _scaled(figure: Figure, factor: float) -> Figure:
    return Figure(figure.median * factor, figure.low * factor, figure.high * factor)


def in_order(points: Iterable[Point], series: Series) -> list[Point]:
    """By verb, size, batch and clients; who took part in one case stands together."""
    verbs = ("write", "read", "exists", "match_prefix")
    return sorted(
        (point for point in points if point.series == series),
        key=lambda p: (verbs.index(p.verb), p.block_bytes, p.batch_blocks, p.clients),
    )


def cells(point: Point) -> tuple[str, ...]:
    """A point as texts, under HEADINGS."""
    cpu = ""
    if point.cpu_client_s_gb is not None:
        server = "?" if point.cpu_server_s_gb is None else f"{point.cpu_server_s_gb:.2f}"
        cpu = f"{point.cpu_client_s_gb:.2f} + {server}"
    return (
        point.name,
        point.verb,
        format_bytes(point.block_bytes),
        f"{point.batch_blocks:,}",
        str(point.clients),
        "" if point.gb_s is None else show(point.gb_s, 3),
        show_count(point.operations_s.median),
        _in_ms(point.p50_s),
        _in_ms(point.p99_s),
        cpu,
    )


def _in_ms(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.median * 1e3:.3f}"


def charts(points: Sequence[Point]) -> list[Chart]:
    """Throughput by block size on each kind of transport, then by number of clients."""
    found = []
    for transport, where in WHERE.items():
        for verb in MOVES:
            names = (transport, *beside(transport))
            chosen = [p for p in points if p.series == "peers" and p.verb == verb]
            lines = [line for name in names if (line := _by_size(chosen, name)) is not None]
            if lines:
                title = f"{verb.capitalize()}, {where}: one client, batches of 4 MiB"
                found.append(Chart(title, "block size", "GB/s", lines, _bytes))
    for verb in MOVES:
        chosen = [p for p in points if p.series == "clients" and p.verb == verb]
        lines = [
            _by_clients(chosen, transport, size)
            for transport in dict.fromkeys(point.name for point in chosen)
            for size in sorted({p.block_bytes for p in chosen} & CLIENT_SIZES)
        ]
        if lines:
            title = f"{verb.capitalize()}, clients together"
            found.append(Chart(title, "clients", "GB/s", lines))
    return found


def beside(transport: str) -> tuple[str, ...]:
    """The limits and the peers of ours on that kind of transport."""
    peers = tuple(peer.name for peer in PEERS if peer.transport == transport)
    return (*((MEMCPY, STREAMING) if transport == "shm" else (SOCKET, SOCKETS)), *peers)


def _by_size(points: Sequence[Point], name: str) -> Line | None:
    places = [(float(p.block_bytes), p.gb_s.median) for p in points if p.name == name and p.gb_s]
    if not places:
        return None
    shown = WHERE_OURS.get(name, name)
    return Line(shown, places, is_limit=name in LIMIT_NAMES, is_ours=name in WHERE_OURS)


def _by_clients(points: Sequence[Point], name: str, size: int) -> Line:
    chosen = [p for p in points if p.name == name and p.block_bytes == size]
    places = [(float(point.clients), point.gb_s.median) for point in chosen if point.gb_s]
    return Line(f"{WHERE_OURS[name]}, {format_bytes(size)}", places, is_ours=True)


def _bytes(value: float) -> str:
    return format_bytes(int(value))
