"""`infinistore bench`: throughput beside this machine's own limits, measured in turns."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infinistore.cli import bench_cluster, bench_sweep, bench_trace
from infinistore.errors import ConfigError
from infinistore.units import parse_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from infinistore.bench.run import Options, Run
    from infinistore.bench.store import Transport

EXIT_SHORT = 1
TRANSPORTS: tuple[Transport, ...] = ("shm", "tcp", "tls")
USUAL: tuple[Transport, ...] = ("shm", "tcp")
ROUNDS, CHECK_ROUNDS, QUICK_ROUNDS = 5, 8, 3


@dataclass(frozen=True, slots=True)
class Files:
    """Where a run writes what it found, besides the terminal."""

    json: Path | None
    markdown: Path | None


def _size(ctx: click.Context, param: click.Parameter, text: str) -> int:
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _sizes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(sorted({_size(ctx, param, text) for text in texts}))


@click.group("bench", invoke_without_command=True)
@click.option("--url", default="", help="A running server's; default: one started for the run.")
@click.option("--token", default=None, envvar="INFINISTORE_TOKEN", help="Secret for --url.")
@click.option(
    "--transport", "transports", multiple=True, type=click.Choice(TRANSPORTS),
    help="Only this one (tls: TCP by TLS); may be repeated.",
)  # fmt: skip
@click.option(
    "--block", "block_sizes", multiple=True, callback=_sizes, metavar="SIZE",
    help="Only blocks of this size; may be repeated.",
)  # fmt: skip
@click.option(
    "--working-set", default="256MiB", show_default=True, callback=_size, metavar="SIZE",
    help="Bytes moved in one pass; take more than the CPU caches.",
)  # fmt: skip
@click.option("--rounds", default=None, type=click.IntRange(1, 1000), metavar="COUNT",
              help="Timed rounds, after one that is not.  [default: 5, of --check 8]")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write everything there.")  # fmt: skip
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the table there.")  # fmt: skip
@click.option("--check", is_flag=True,
              help="Measure every target, a line each; exit status 1 if any is short.")  # fmt: skip
@click.option("--only", "checks", multiple=True, metavar="CHECK",
              help="Of --check only this; may be repeated; a wrong one lists them.")  # fmt: skip
@click.option("--quick", is_flag=True, help="With --check, 3 rounds and a smaller index.")
@click.option("--peers", default="build/peers", show_default=True, metavar="FOLDER",
              type=click.Path(file_okay=False, path_type=Path),
              help="Where `make peers` has installed them.")  # fmt: skip
@click.option("--bench-store", default="build/dev/benchmarks/bench_store", show_default=True,
              metavar="PROGRAM", type=click.Path(dir_okay=False, path_type=Path),
              help="The C++ program that measures the index alone.")  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context,
    url: str,
    token: str | None,
    transports: tuple[Any, ...],
    block_sizes: tuple[int, ...],
    working_set: int,
    rounds: int | None,
    json_file: Path | None,
    markdown_file: Path | None,
    check: bool,
    checks: tuple[str, ...],
    quick: bool,
    peers: Path,
    bench_store: Path,
) -> None:
    """Measure reads and writes beside this machine's limits.

    The limits: for shared memory the better of two plain copy loops (the C library's and one with
    non-temporal stores), for TCP two plain sockets to another process. Every round times all of
    them once and compares every byte; figures are medians with the spread of the rounds, a ratio
    is the median of the rounds' ratios.

    With --check every target is measured instead: shares of the limits, single calls, the index,
    other stores (a peer that is not installed counts as short), and many clients.
    """
    if ctx.invoked_subcommand is not None:
        return
    if (checks or quick) and not check:
        raise click.UsageError("--only and --quick go with --check")
    for size in block_sizes:
        if not 1 <= size <= working_set:
            raise click.BadParameter(f"a block of {size} bytes is not within the working set")
    from infinistore.bench.run import BLOCK_SIZES, Options
    from infinistore.server.process_list import hide_argument

    hide_argument(token or "")

    options = Options(
        url=url,
        token=token,
        transports=tuple(name for name in TRANSPORTS if name in (transports or USUAL)),
        block_sizes=block_sizes or BLOCK_SIZES,
        working_set=working_set,
        rounds=rounds or (ROUNDS if not check else QUICK_ROUNDS if quick else CHECK_ROUNDS),
    )
    files = Files(json_file, markdown_file)
    if check:
        sys.exit(_check(options, checks, quick, peers, bench_store, files))
    found = _run_with_progress(options)
    _print_table(found)
    _write_table(found, files)


command.add_command(bench_cluster.command)
command.add_command(bench_sweep.command)
command.add_command(bench_trace.command)


def _write_table(found: Run, files: Files) -> None:
    from infinistore.bench.report import as_json, as_markdown

    if files.json is not None:
        document = as_json(found.rows, found.machine, found.settings)
        files.json.write_text(json.dumps(document, indent=1) + "\n")
    if files.markdown is not None:
        files.markdown.write_text(as_markdown(found.rows, found.machine, found.settings))


def _check(
    options: Options,
    names: tuple[str, ...],
    quick: bool,
    peers: Path,
    bench_store: Path,
    files: Files,
) -> int:
    """Runs the checks and says what they found; the exit status."""
    from infinistore.bench.checks.line import as_text
    from infinistore.bench.checks.report import as_json, as_markdown, summary
    from infinistore.bench.checks.scope import Scope
    from infinistore.bench.checks.table import CHECKS, Found, run_checks
    from infinistore.bench.rounds import load_average
    from infinistore.bench.run import describe_machine

    unknown = set(names) - {check.name for check in CHECKS}
    if unknown:
        known = "; ".join(f"{check.name}: {check.about}" for check in CHECKS)
        raise click.UsageError(f"no check {', '.join(sorted(unknown))!r}; there are {known}")

    def say(found: Found) -> None:
        click.echo(f"{found.check.name}: {found.check.about}; {found.seconds:.0f} s")
        for line in as_text(found.lines):
            click.echo(f"  {line}")

    before = load_average()
    with tempfile.TemporaryDirectory(prefix="infinistore-bench-") as logs:
        scope = Scope(
            options=options,
            logs=Path(logs),
            peers=peers,
            bench_store=bench_store,
            quick=quick,
            on_step=lambda step: click.echo(f"... {step}", err=True),
        )
        chosen = [check for check in CHECKS if not names or check.name in names]
        found = run_checks(chosen, scope, say)
    click.echo(summary(found))
    about = {
        **describe_machine(),
        "rounds": str(options.rounds),
        "load average": f"{before:.1f} before, {load_average():.1f} after",
    }
    if files.json is not None:
        files.json.write_text(json.dumps(as_json(found, about), indent=1) + "\n")
    if files.markdown is not None:
        files.markdown.write_text(as_markdown(found, about))
    return EXIT_SHORT if any(not line.ok for one in found for line in one.lines) else 0


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
