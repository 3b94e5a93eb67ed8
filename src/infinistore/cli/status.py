"""`infinistore status`: what a running server holds and does, on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from infinistore.cli._admin import admin_options, find_admin, print_json
from infinistore.units import format_bytes, format_seconds


@click.command("status")
@admin_options
def command(address: str | None, token_file: str | None, as_json: bool) -> None:
    """What a running server holds and does."""
    admin = find_admin(address, token_file)
    health, stats = admin.ask("GET", "/health"), admin.ask("GET", "/stats")
    if as_json:
        print_json({"admin": str(admin), "health": health, "stats": stats})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, title=f"InfiniStore at {admin}", title_justify="left")
    for name, value in rows(health, stats):
        table.add_row(name, value)
    Console().print(table)


def rows(health: Mapping[str, Any], stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of the table. A counter that the server does not have is left out."""
    capacity = stats.get("capacity_bytes", 0)
    state = str(health["status"])
    if health.get("populating"):
        populated = format_bytes(health["populated_bytes"])
        state += f", populating ({populated} of {format_bytes(capacity)} ready)"
    lines = [
        ("state", state),
        ("version", str(stats.get("version", ""))),
        ("up", format_seconds(stats.get("uptime_s", 0))),
        ("pool", format_bytes(capacity)),
    ]
    for name in ("sealed", "reserved", "quarantined", "free"):
        size = stats.get(f"{name}_bytes")
        if size is not None:
            share = f" ({100 * size / capacity:.1f} %)" if capacity else ""
            lines.append((f"  {name}", format_bytes(size) + share))
    counts = ("keys", "namespaces", "staged_values", "sessions", "evictions", "corrupt")
    lines += [(name.replace("_", " "), f"{stats[name]:,}") for name in counts if name in stats]
    lines.append(("hit rate", hit_rate(stats.get("hits", 0), stats.get("misses", 0))))
    return lines


def hit_rate(hits: int, misses: int) -> str:
    asked = hits + misses
    return f"{100 * hits / asked:.1f} % of {asked:,} keys asked for" if asked else "nothing asked"
