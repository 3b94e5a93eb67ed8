"""`infinistore keys`: questions about keys."""

from __future__ import annotations

import click

from infinistore.cli._admin import admin_options, find_admin, print_json


@click.group("keys")
def command() -> None:
    """Questions about keys."""


@command.command("count")
@click.option("--namespace", metavar="NAME", help="Count one namespace; left out: all.")
@admin_options
def count(
    namespace: str | None, address: str | None, token_file: str | None, as_json: bool
) -> None:
    """How many keys can be read."""
    query = {"namespace": namespace}
    answer = find_admin(address, token_file).ask("GET", "/keys/count", query)
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["count"])
