"""`infinistore bench sweep`: block sizes, batches, clients and peers, as tables and charts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

TRANSPORTS = ("shm", "tcp")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("sweep", short_help="Measure by sizes, batches and clients.")
@click.option("--quick", is_flag=True, help="Three sizes, two batches, 1 and 4 clients, 3 rounds.")
@click.option(
    "--transport", "transports", multiple=True, type=click.Choice(TRANSPORTS),
    help="Only this one; may be repeated.",
)  # fmt: skip
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 1000),
              help="Timed rounds of each case, after one that is not.")  # fmt: skip
@click.option(
    "--budget", "budget_min", default=15.0, show_default=True, type=click.FloatRange(min=0),
    metavar="MINUTES", help="Begin no case after so long; say what is left out.",
)  # fmt: skip
@click.option("--peers", default="build/peers", show_default=True, metavar="FOLDER",
              type=click.Path(file_okay=False, path_type=Path),
              help="Where `make peers` has installed them.")  # fmt: skip
@click.option("--json", "json_file", type=_FILE, help="Write everything there.")
@click.option("--markdown", "markdown_file", type=_FILE, help="Write the tables there.")
@click.option("--svg", "svg_file", type=_FILE, help="Write the charts there.")
def command(
    quick: bool,
    transports: tuple[Any, ...],
    rounds: int,
    budget_min: float,
    peers: Path,
    json_file: Path | None,
    markdown_file: Path | None,
    svg_file: Path | None,
) -> None:
    """Measure how throughput, latency and CPU time depend on sizes, batches and clients.

    Blocks of 1 KiB to 4 MiB, batches of 1 to 10,000 blocks, 1 to 8 clients in processes of their
    own; writes, reads, exists and match_prefix; beside the limits of this machine and the peers
    that are installed. A batch is waited for before the next: its latency is from the call until
    it is done. Every byte is compared. The tables go to stdout unless --markdown is given.
    """
    from infinistore.bench import plot, sweep, sweep_report
    from infinistore.bench.rounds import load_average
    from infinistore.bench.run import describe_machine

    chosen = tuple(name for name in ("shm", "tcp") if name in (transports or TRANSPORTS))
    plan = sweep.Plan(
        transports=chosen,  # type: ignore[arg-type]
        rounds=rounds,
        peers=peers,
        budget_s=60 * budget_min,
    )
    if quick:
        plan = sweep.quick(plan)
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="infinistore-bench-") as logs:
        found = sweep.run_sweep(plan, Path(logs), lambda step: click.echo(f"... {step}", err=True))
    settings = {
        "rounds": f"{plan.rounds} after {sweep.WARM_UPS} warm-up",
        "load average": f"{before:.1f} before, {load_average():.1f} after",
    }
    machine = describe_machine()
    tables = sweep_report.as_markdown(found, machine, settings)
    if markdown_file is None:
        click.echo(tables)
    else:
        markdown_file.write_text(tables)
    if json_file is not None:
        document = sweep_report.as_json(found, machine, settings)
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    if svg_file is not None:
        svg_file.write_text(plot.as_svg(sweep_report.charts(found.points)))
