"""`infinistore cluster`: the nodes of a server's cluster, their load, and copies of hot blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from infinistore.cli._admin import admin_options, find_admin, print_json
from infinistore.units import format_bytes


@click.command("cluster")
@admin_options
def command(address: str | None, token_file: str | None, as_json: bool) -> None:
    """The nodes of a server's cluster, their load, and copies of hot blocks."""
    answer = find_admin(address, token_file).ask("GET", "/cluster")
    if as_json:
        print_json(answer)
        return
    if answer["node"] is None:
        click.echo("this server is a node of no cluster; start it with --cluster")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title(answer), title_justify="left")
    for name in HEAD:
        table.add_column(name)
    for line in rows(answer["nodes"]):
        table.add_row(*line)
    Console().print(table)
    if answer["problem"]:
        click.echo(answer["problem"], err=True)


HEAD = ("node", "state", "address", "pool", "serves", "copies made", "copies held")


def title(answer: Mapping[str, Any]) -> str:
    """The line above the table."""
    etcd = "" if answer["connected"] else ", etcd is away: what was known stays"
    return f"{len(answer['nodes'])} nodes, as {answer['node']} sees them{etcd}"


def rows(nodes: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A line for each node."""
    lines: list[tuple[str, ...]] = []
    for node in nodes:
        made = sum(len(names) for names in node["copies"].values())
        held = sum(node["name"] in names for each in nodes for names in each["copies"].values())
        lines.append(
            (
                node["name"],
                node["state"] if node["answers"] else f"{node['state']}, does not answer",
                node["address"],
                format_bytes(node["capacity_bytes"]) if node["capacity_bytes"] else "",
                f"{format_bytes(int(node['bytes_per_s']))}/s",
                str(made),
                str(held),
            )
        )
    return lines
