"""The table at the end, build/demo.json, and lines of progress meanwhile."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from demo.verdict import Pass, Row


class Narrator:
    """Says what is being done: a line for each step, and one that moves on a terminal."""

    def __init__(self) -> None:
        """Time starts here."""
        self._began_s = time.monotonic()
        self._moving = False

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began_s

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(f"[{self.elapsed_s:5.0f} s] {text}", flush=True)

    def tick(self, text: str) -> None:
        """A line that the next one overwrites; nothing where there is no terminal."""
        if sys.stdout.isatty():
            self._clear()
            print(f"[{self.elapsed_s:5.0f} s] {text}", end="", flush=True)
            self._moving = True

    def _clear(self) -> None:
        if self._moving:
            print("\r\x1b[K", end="")
            self._moving = False


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}" if count else "-"


def print_table(rows: Sequence[Row]) -> None:
    """One line for each prompt and transport."""
    table = Table(title="the same prompts, plain and through the store", box=box.SIMPLE)
    table.add_column("prompt")
    table.add_column("via")
    table.add_column("tokens", justify="right")
    table.add_column("equal", justify="center")
    for name in ("plain", "P/D", "2nd"):
        table.add_column(f"TTFT ms\n{name}", justify="right")
    for name in ("P/D", "2nd"):
        table.add_column(f"from store\n{name}, tokens", justify="right")
    for name in ("read", "written"):
        table.add_column(f"MiB\n{name}", justify="right")
    for row in rows:
        table.add_row(
            row.prompt.name,
            row.transport,
            str(row.plain.prompt_tokens),
            "yes" if row.is_identical else "[bold red]NO[/]",
            f"{row.plain.ttft_ms:.0f}",
            f"{row.split.reply.ttft_ms:.0f}",
            f"{row.second.reply.ttft_ms:.0f}",
            str(row.split.hits.external),
            str(row.second.hits.external),
            _mib(row.split.read_bytes + row.second.read_bytes),
            _mib(row.split.written_bytes + row.second.written_bytes),
        )
    width = None if sys.stdout.isatty() else 120
    Console(width=width).print(table)


def _pass(seen: Pass) -> dict[str, Any]:
    return {
        "token_ids": list(seen.reply.token_ids),
        "ttft_ms": round(seen.reply.ttft_ms, 1),
        "local_hit_tokens": seen.hits.local,
        "external_hit_tokens": seen.hits.external,
        "read_bytes": seen.read_bytes,
        "written_bytes": seen.written_bytes,
    }


def _medians(rows: Sequence[Row]) -> dict[str, float]:
    return {
        "plain": round(statistics.median(row.plain.ttft_ms for row in rows), 1),
        "prefill_decode": round(statistics.median(row.split.reply.ttft_ms for row in rows), 1),
        "second_time": round(statistics.median(row.second.reply.ttft_ms for row in rows), 1),
    }


def as_json(rows: Sequence[Row], faults: Sequence[str], extra: dict[str, Any]) -> dict[str, Any]:
    """The content of build/demo.json.

    `prompts` and `identical` count (prompt, transport) pairs; `ttft_ms` are medians, of all prompts
    and of those of a thousand tokens and more.
    """
    transports = list(dict.fromkeys(row.transport for row in rows))
    long = [row for row in rows if row.plain.prompt_tokens >= 1000]
    return {
        "prompts": len(rows),
        "identical": sum(row.is_identical for row in rows),
        "external_hit_tokens": sum(
            seen.hits.external for row in rows for seen in (row.split, row.second)
        ),
        "external_hit_tokens_after_restart": sum(row.second.hits.external for row in rows),
        "transports": transports,
        "ttft_ms": {
            transport: {
                "all": _medians([row for row in rows if row.transport == transport]),
                "long": _medians([row for row in long if row.transport == transport]),
            }
            for transport in transports
        },
        "faults": list(faults),
        **extra,
        "rows": [
            {
                "prompt": row.prompt.name,
                "kind": row.prompt.kind,
                "transport": row.transport,
                "prompt_tokens": row.plain.prompt_tokens,
                "identical": row.is_identical,
                "plain": {
                    "token_ids": list(row.plain.token_ids),
                    "text": row.plain.text,
                    "ttft_ms": round(row.plain.ttft_ms, 1),
                },
                "prefill_decode": _pass(row.split),
                "second_time": _pass(row.second),
            }
            for row in rows
        ],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    draft.replace(path)
