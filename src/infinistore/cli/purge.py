"""`infinistore purge`: erase a namespace, for example after its weights changed."""

from __future__ import annotations

import click

from infinistore.cli._admin import admin_options, find_admin, print_json


@click.command("purge")
@click.option("--namespace", metavar="NAME", help="The namespace to erase.")
@click.option("--all", "everything", is_flag=True, help="Erase every namespace.")
@admin_options
def command(
    namespace: str | None,
    everything: bool,
    address: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Erases every key of a namespace. What is being read stays until its reader is done."""
    if (namespace is None) == (not everything):
        raise click.UsageError("give either --namespace NAME or --all")
    query = {"namespace": namespace}
    answer = find_admin(address, token_file).ask("POST", "/purge", query)
    if as_json:
        print_json(answer)
    else:
        where = "all namespaces" if everything else f"namespace {namespace}"
        click.echo(f"erased {answer['num']} keys of {where}")
