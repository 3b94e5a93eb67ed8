"""`infinistore bench`: throughput beside this machine's own limits, measured in turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infinistore.errors import ConfigError
from infinistore.units import parse_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from infinistore.bench.run import Options, Run
    from infinistore.bench.store import Transport

EXIT_SHORT = 1
TRANSPORTS: tuple[Transport, ...] = ("shm", "tcp")


def _size(ctx: click.Context, param: click.Parameter, text: str) -> int:
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _sizes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(sorted({_size(ctx, param, text) for text in texts}))


@click.command("bench")
@click.option("--url", default="", help="A running server's; default: one started for the run.")
@click.option("--token", default=None, envvar="INFINISTORE_TOKEN", help="Secret for --url.")
@click.option(
    "--transport", "transports", multiple=True, type=click.Choice(TRANSPORTS),
    help="Only this one; may be repeated.",
)  # fmt: skip
@click.option(
    "--block", "block_sizes", multiple=True, callback=_sizes, metavar="SIZE",
    help="Only blocks of this size; may be repeated.",
)  # fmt: skip
@click.option(
    "--working-set", default="256MiB", show_default=True, callback=_size, metavar="SIZE",
    help="Bytes moved in one pass; take more than the CPU caches.",
)  # fmt: skip
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 1000),
              help="Timed rounds, after one that is not.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write everything there.")  # fmt: skip
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the table there.")  # fmt: skip
@click.option("--check", is_flag=True, help="One line a target; exit status 1 if any is short.")
def command(
    url: str,
    token: str | None,
    transports: tuple[Any, ...],
    block_sizes: tuple[int, ...],
    working_set: int,
    rounds: int,
    json_file: Path | None,
    markdown_file: Path | None,
    check: bool,
) -> None:
    """Measure reads and writes beside this machine's limits.

    The limits: for shared memory the better of two plain copy loops (the C library's and one with
    non-temporal stores), for TCP two plain sockets to another process. Every round times all of
    them once and compares every byte; figures are medians with the spread of the rounds, a ratio
    is the median of the rounds' ratios. Targets hold from 64 KiB on.
    """
    for size in block_sizes:
        if not 1 <= size <= working_set:
            raise click.BadParameter(f"a block of {size} bytes is not within the working set")
    from infinistore.bench.report import as_json, as_markdown, verdict_lines
    from infinistore.bench.run import BLOCK_SIZES, Options

    options = Options(
        url=url,
        token=token,
        transports=tuple(name for name in TRANSPORTS if name in (transports or TRANSPORTS)),
        block_sizes=block_sizes or BLOCK_SIZES,
        working_set=working_set,
        rounds=rounds,
    )
    found = _run_with_progress(options)
    _print_table(found)
    if json_file is not None:
        document = as_json(found.rows, found.machine, found.settings)
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    if markdown_file is not None:
        markdown_file.write_text(as_markdown(found.rows, found.machine, found.settings))
    if check:
        for line in verdict_lines(found.rows):
            click.echo(line)
        if any(row.is_short for row in found.rows):
            sys.exit(EXIT_SHORT)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    # A table that is not for a terminal must not be cut at 80 columns.
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 180)


def _run_with_progress(options: Options) -> Run:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from infinistore.bench.run import run, step_count

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    # On stderr, and slowly: redrawing takes CPU from what is measured.
    with Progress(*columns, console=_console(True), refresh_per_second=2, transient=True) as bar:
        task = bar.add_task("getting memory", total=step_count(options))

        def on_step(step: str) -> None:
            if step:
                bar.update(task, description=step)
            else:
                bar.advance(task)

        return run(options, on_step)


def _print_table(found: Run) -> None:
    from rich.table import Table

    from infinistore.bench.report import HEADINGS, cells

    about = [f"{name} {value}" for name, value in {**found.machine, **found.settings}.items()]
    table = Table(caption="median (lowest-highest); " + ", ".join(about))
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True)
    for row in found.rows:
        verdict = "red" if row.is_short else "green"
        *plain, last = cells(row)
        table.add_row(*plain, f"[{verdict}]{last}[/]" if last else "")
    _console(False).print(table)
