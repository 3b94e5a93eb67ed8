"""`infinistore verify`: compare every value of a live pool with its checksum."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from infinistore.cli._admin import Admin, admin_options, find_admin, print_json
from infinistore.errors import ConnectError
from infinistore.units import format_bytes, format_seconds

EXIT_CORRUPT = 1
EXIT_CANCELLED = 130  # as a shell says of Ctrl-C
SHOWN_MAX = 20


@click.command("verify")
@click.option("--rate", metavar="RATE", help="Bytes a second at most, like 1GB/s (the default).")
@admin_options
def command(rate: str | None, address: str | None, token_file: str | None, as_json: bool) -> None:
    """Compares every value with its checksum, while the server serves; drops what is damaged.

    Exit status 1 if any value was. Ctrl-C ends it: what was found by then stays dropped.
    """
    admin = find_admin(address, token_file)
    found: dict[str, Any] = {}
    cancelled = False
    try:
        with contextlib.closing(admin.stream("POST", "/verify", {"rate": rate})) as lines:
            for line in _with_progress(lines, quiet=as_json):
                found = line
    except KeyboardInterrupt:
        cancelled = True
    if not cancelled and not found.get("done"):
        raise ConnectError(f"{admin} ended before all was seen; ask it again")
    if as_json:
        print_json({"admin": str(admin), "cancelled": cancelled, **found})
    else:
        click.echo("\n".join(report(found, admin, cancelled)))
    sys.exit(EXIT_CANCELLED if cancelled else EXIT_CORRUPT if found["corrupt"] else 0)


def _with_progress(lines: Iterable[dict[str, Any]], quiet: bool) -> Iterator[dict[str, Any]]:
    if quiet or not sys.stderr.isatty():
        yield from lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verify", total=None)
        for line in lines:
            # Values come and go: what is seen may be more than what was there at the start.
            total = max(line["total_bytes"], line["bytes"])
            bar.update(task, completed=line["bytes"], total=total)
            yield line


def report(found: Mapping[str, Any], admin: Admin, cancelled: bool) -> list[str]:
    """What to say of the last progress."""
    values, corrupt = found.get("values", 0), found.get("corrupt", 0)
    seconds = format_seconds(found.get("seconds", 0))
    size = format_bytes(found.get("bytes", 0))
    lines = [f"{admin}: {values:,} values, {size} in {seconds}: {corrupt:,} corrupt"]
    if cancelled:
        lines[0] += " so far; cancelled"
    damaged = found.get("damaged", [])
    for each in damaged[:SHOWN_MAX]:
        space = f" (namespace {each['namespace']})" if each["namespace"] else ""
        lines.append(f"  dropped {each['key']}{space}")
    if corrupt > len(damaged[:SHOWN_MAX]) and damaged:
        lines.append(f"  and {corrupt - len(damaged[:SHOWN_MAX]):,} more; --json names up to 1,000")
    return lines
