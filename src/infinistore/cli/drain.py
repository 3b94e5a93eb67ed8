"""`infinistore drain`: a node moves its values to the others, and stops."""

from __future__ import annotations

import time
from typing import Any

import click

from infinistore.cli._admin import Admin, admin_options, find_admin, print_json
from infinistore.errors import ConnectError

_LOOK_S = 0.5


@click.command("drain")
@click.argument("node", required=False)
@click.option("--wait/--no-wait", default=True, help="Return once the node has stopped.")
@admin_options
def command(
    node: str | None, wait: bool, address: str | None, token_file: str | None, as_json: bool
) -> None:
    """Has NODE (left out: the server at --admin) move its values to the other nodes, then stop."""
    admin = find_admin(address, token_file)
    answer = admin.ask("POST", "/drain", {"node": node})
    name = str(answer["node"])
    if wait:
        while not has_left(admin, name):
            time.sleep(_LOOK_S)
    if as_json:
        print_json(answer | {"left": wait})
    else:
        click.echo(f"{name} has left" if wait else f"{name} is leaving")


def has_left(admin: Admin, name: str) -> bool:
    """Whether the node is gone, as the server at `admin` sees it, or is that server and stopped."""
    try:
        nodes: list[dict[str, Any]] = admin.ask("GET", "/cluster")["nodes"]
    except ConnectError:
        return True
    return not any(node["name"] == name and node["answers"] for node in nodes)
