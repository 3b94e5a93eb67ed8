"""`infinistore bench trace`: traces through eviction policies, and a pool under churn."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infinistore.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from infinistore.bench.trace.prompts import Trace
    from infinistore.bench.trace.replay import Point

EXIT_SHORT = 1


def _files(folders_or_files: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in folders_or_files:
        found += sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
    return found


@click.command("trace")
@click.option("--trace", "paths", multiple=True,
              type=click.Path(exists=True, path_type=Path),
              help="JSON lines with hash_ids, or a folder of such; may be repeated.")  # fmt: skip
@click.option("--generated", is_flag=True,
              help="Workloads of the built-in generator, as further traces.")  # fmt: skip
@click.option("--capacity", "fractions", multiple=True, type=click.FloatRange(0.0001, 1),
              default=(0.1, 0.3), show_default=True,
              help="Of the trace's distinct blocks; may be repeated.")  # fmt: skip
@click.option("--policy", "policies", multiple=True, help="Only this one; may be repeated.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write everything there.")  # fmt: skip
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a picture (SVG) there.")  # fmt: skip
@click.option("--check", is_flag=True,
              help="One line a target, the pool's too; exit status 1 if any is short.")  # fmt: skip
def command(
    paths: tuple[Path, ...],
    generated: bool,
    fractions: tuple[float, ...],
    policies: tuple[str, ...],
    json_file: Path | None,
    plot_file: Path | None,
    check: bool,
) -> None:
    """Replay traces through eviction policies.

    Hits are the blocks before the first missing one of a prompt. Policies named as the server's
    run in the store itself; the published ones are models; the optimum knows the future.
    """
    from infinistore.bench.trace.churn import MIXES, churn
    from infinistore.bench.trace.generated import generated_traces
    from infinistore.bench.trace.prompts import read_trace
    from infinistore.bench.trace.replay import policy_names
    from infinistore.bench.trace.report import as_svg, target_line, targets

    if unknown := set(policies) - set(policy_names()):
        raise click.BadParameter(f"no policy is named {', '.join(sorted(unknown))}")
    if check and policies:
        raise click.UsageError("--check compares all policies: leave --policy out")
    try:
        traces = [read_trace(path) for path in _files(paths)]
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    if generated:
        traces += generated_traces()
    if not traces:
        raise click.UsageError("no trace: name one by --trace, or ask for --generated")
    points = _replay(traces, fractions, policies)
    _print_table(points)
    document = {"points": [asdict(point) for point in points]}
    short = False
    if check:
        churns = [churn(mix) for mix in MIXES]
        found = targets(points, churns)
        document["targets"] = [
            asdict(target) | {"ratio": target.ratio, "ok": not target.is_short} for target in found
        ]
        document["churns"] = [asdict(churned) for churned in churns]
        for target in found:
            click.echo(target_line(target))
        short = any(target.is_short for target in found)
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    if plot_file is not None:
        plot_file.write_text(as_svg(points))
    if short:
        sys.exit(EXIT_SHORT)


def _replay(
    traces: list[Trace], fractions: tuple[float, ...], policies: tuple[str, ...]
) -> list[Point]:
    from rich.progress import Progress

    from infinistore.bench.trace.replay import policy_names, replay

    total = len(traces) * len(fractions) * len(policies or policy_names())
    with Progress(console=_console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=total)
        points = []
        for point in replay(traces, sorted(fractions), policies):
            points.append(point)
            bar.update(task, advance=1, description=f"{point.trace} {point.policy}")
    return points


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    # A table that is not for a terminal must not be cut at 80 columns.
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 200)


def _print_table(points: list[Point]) -> None:
    from rich.table import Table

    from infinistore.bench.trace.report import headings, rows

    table = Table(caption="hits of blocks; capacity in parts of the trace's distinct blocks")
    for heading in headings(points):
        table.add_column(heading, no_wrap=True)
    for cells in rows(points):
        table.add_row(*cells)
    _console(stderr=False).print(table)
