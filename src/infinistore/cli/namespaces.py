"""`infinistore namespaces`: whose keys a running server holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from infinistore.cli._admin import admin_options, find_admin, print_json
from infinistore.cli._table import show_table
from infinistore.units import format_bytes, format_seconds


@click.command("namespaces")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True,
              help="So many at most, the largest first.")  # fmt: skip
@admin_options
def command(limit: int, address: str | None, token_file: str | None, as_json: bool) -> None:
    """Lists namespaces with their keys, bytes, hit rate and last use, the largest first."""
    admin = find_admin(address, token_file)
    answer = admin.ask("GET", "/namespaces", {"limit": str(limit)})
    if as_json:
        print_json(answer)
        return
    spaces = answer["namespaces"]
    headings = ("namespace", "keys", "bytes", "hit rate", "last use")
    show_table(headings, [row(space) for space in spaces], numbers=range(1, 5))
    if answer["count"] > len(spaces):
        click.echo(f"and {answer['count'] - len(spaces):,} smaller ones; --limit shows more")


def row(space: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    asked = space["hits"] + space["misses"]
    idle = space["idle_s"]
    return (
        space["namespace"] or "(nameless)",
        f"{space['keys']:,}",
        format_bytes(space["bytes"]),
        f"{100 * space['hits'] / asked:.1f} %" if asked else "-",
        "never" if idle is None else f"{format_seconds(round(idle, 1))} ago",
    )
