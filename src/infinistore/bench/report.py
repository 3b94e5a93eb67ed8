"""What a run found: rows with their targets, as JSON and as Markdown; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from infinistore.bench.figures import (
    MOVES,
    Figure,
    Sample,
    Verb,
    best_limit,
    block_rate,
    cpu_cost,
    rate,
    ratio,
)
from infinistore.bench.rounds import CaseResult
from infinistore.units import format_bytes

# Shares of a limit: of blocks of 4 KiB, and from 64 KiB on. Between the two none is promised.
TARGETS: dict[str, tuple[float, float]] = {"shm": (0.6, 0.9), "tcp": (0.6, 0.85)}
SMALL_BLOCK_BYTES, LARGE_BLOCK_BYTES_MIN = 4 * 1024, 64 * 1024


def target_of(transport: str, block_bytes: int) -> float | None:
    """The share of the best limit that is promised for such blocks, or None."""
    if transport not in TARGETS:  # tls: what it costs is what it costs
        return None
    small, large = TARGETS[transport]
    if block_bytes >= LARGE_BLOCK_BYTES_MIN:
        return large
    return small if block_bytes == SMALL_BLOCK_BYTES else None


@dataclass(frozen=True, slots=True)
class Row:
    """One transport, verb and block size, beside the best limit of its kind."""

    transport: str
    verb: str
    block_bytes: int
    batch_blocks: int
    rate_gb_s: Figure
    blocks_s: Figure
    cpu_client_s_gb: float
    cpu_server_s_gb: float | None
    limit: str
    limit_gb_s: Figure
    limit_cpu_s_gb: float
    ratio: Figure
    target: float | None

    @property
    def is_short(self) -> bool:
        return self.target is not None and self.ratio.median < self.target

    @property
    def name(self) -> str:
        return f"{self.transport} {self.verb} {format_bytes(self.block_bytes)}"

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "short" if self.is_short else "ok"


def make_rows(
    results: Iterable[CaseResult],
    transports: Sequence[str],
    limits: Mapping[str, Sequence[str]],
) -> list[Row]:
    """A row for each transport, verb and size; `limits` names each transport's limits."""
    return [
        _row(result, transport, verb, limits[transport])
        for transport in transports
        for verb in MOVES
        for result in results
    ]


def _row(result: CaseResult, transport: str, verb: Verb, limit_names: Sequence[str]) -> Row:
    case = result.case
    ours = result.samples[transport, verb]
    limits = {name: result.samples[name, verb] for name in limit_names}
    best = best_limit(limits)
    client, server = cpu_cost(case, ours)
    return Row(
        transport=transport,
        verb=verb,
        block_bytes=case.block_bytes,
        batch_blocks=case.batch_blocks,
        rate_gb_s=rate(case, ours),
        blocks_s=block_rate(case, ours),
        cpu_client_s_gb=client,
        cpu_server_s_gb=server,
        limit=best,
        limit_gb_s=rate(case, limits[best]),
        limit_cpu_s_gb=_cpu_both(result, limits[best]),
        ratio=ratio(ours, limits[best]),
        target=target_of(transport, case.block_bytes),
    )


def _cpu_both(result: CaseResult, samples: Sequence[Sample]) -> float:
    near, far = cpu_cost(result.case, samples)
    return near + (far or 0.0)


def as_json(
    rows: Iterable[Row], machine: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that the tables show, and the machine it was found on."""
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
    }


def show(figure: Figure, digits: int = 2) -> str:
    """The median, and the spread behind it."""
    return f"{figure.median:.{digits}f} ({figure.low:.{digits}f}-{figure.high:.{digits}f})"


def show_count(value: float) -> str:
    """Three digits and a letter: "812", "41.3k", "1.25M"."""
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            scaled = value / factor
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{letter}"
    return f"{value:.0f}"


HEADINGS = (
    "transport",
    "verb",
    "block",
    "GB/s",
    "blocks/s",
    "limit GB/s",
    "ratio",
    "CPU s/GB c + s",
    "limit",
    "",
)


def cells(row: Row) -> tuple[str, ...]:
    """A row as texts, under HEADINGS."""
    server = "?" if row.cpu_server_s_gb is None else f"{row.cpu_server_s_gb:.2f}"
    return (
        row.transport,
        row.verb,
        format_bytes(row.block_bytes),
        show(row.rate_gb_s),
        show_count(row.blocks_s.median),
        f"{show(row.limit_gb_s)} {row.limit}",
        show(row.ratio),
        f"{row.cpu_client_s_gb:.2f} + {server}",
        f"{row.limit_cpu_s_gb:.2f}",
        row.verdict,
    )


def as_markdown(
    rows: Iterable[Row], machine: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """A table for docs/benchmarks.md, under a line that says where and how it was made."""
    lines = [
        ", ".join(f"{name} {value}" for name, value in machine.items()) + ".  ",
        ", ".join(f"{name} {value}" for name, value in settings.items()) + ".",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
