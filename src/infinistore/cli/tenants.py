"""`infinistore tenants`: what each tenant holds of a running server's pool, against its quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from infinistore.cli._admin import admin_options, find_admin, print_json
from infinistore.cli._table import show_table
from infinistore.units import format_bytes


@click.command("tenants")
@admin_options
def command(address: str | None, token_file: str | None, as_json: bool) -> None:
    """Lists tenants with what they hold, their quotas, and what was evicted for those.

    With a tenant's own token (admin = true in the tenants' file) it is that one's line.
    """
    admin = find_admin(address, token_file)
    answer = admin.ask("GET", "/tenants")
    if as_json:
        print_json(answer)
        return
    tenants = answer["tenants"]
    if not tenants:
        click.echo(f"{admin} has no tenants (--tenants-file)")
        return
    headings = ("tenant", "held", "quota", "full", "evicted for it")
    show_table(headings, [row(tenant) for tenant in tenants], numbers=range(1, 5))


def row(tenant: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    used, quota = tenant["used_bytes"], tenant["quota_bytes"]
    return (
        tenant["tenant"],
        format_bytes(used),
        format_bytes(quota) if quota else "none",
        f"{100 * used / quota:.1f} %" if quota else "-",
        f"{format_bytes(tenant['quota_evicted_bytes'])} ({tenant['quota_evictions']:,} values)",
    )
