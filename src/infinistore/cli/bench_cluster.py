"""`infinistore bench cluster`: the decisions of a cluster's nodes, in a simulation of many."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from infinistore.errors import ConfigError

EXIT_SHORT = 1
GROUPS_PER_NODE = 200
# From so many nodes on a node may push more: the hottest group then needs hundreds of copies.
MANY_NODES, MANY_COPY_RATE = 1000, 1 << 30


@click.command("cluster")
@click.option("--nodes", "counts", multiple=True, type=click.IntRange(4, 1024),
              default=(4, 100, 1000), show_default=True, help="May be repeated.")  # fmt: skip
@click.option("--trace", "paths", multiple=True,
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="JSON lines with hash_ids, for 4 nodes; may be repeated.")  # fmt: skip
@click.option("--zipf", "exponent", default=1.0, show_default=True, type=click.FloatRange(0, 2),
              help="Exponent of the groups' popularity.")  # fmt: skip
@click.option("--seed", default=4, show_default=True,
              help="Of where groups fall, and of all chance.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write everything there.")  # fmt: skip
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the tables there.")  # fmt: skip
def command(
    counts: tuple[int, ...],
    paths: tuple[Path, ...],
    exponent: float,
    seed: int,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Simulate a cluster: load, copies and moves.

    The nodes decide by the code that servers run. One line a target; exit status 1 if any is
    short.
    """
    from infinistore.bench.checks.line import as_text
    from infinistore.bench.cluster.course import run_course
    from infinistore.bench.cluster.popularity import of_trace, zipf
    from infinistore.bench.cluster.report import as_json, as_markdown, lines
    from infinistore.bench.cluster.simulated import Machine
    from infinistore.bench.trace.prompts import read_trace

    try:
        courses = [(path.name.partition(".")[0], 4, of_trace(read_trace(path))) for path in paths]
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    courses += [(f"Zipf({exponent:g})", n, zipf(GROUPS_PER_NODE * n, exponent)) for n in counts]
    all_found = []
    for load, nodes, weights in courses:
        machine = Machine(copy_bytes_per_s=MANY_COPY_RATE) if nodes >= MANY_NODES else Machine()

        def say(phase: str, nodes: int = nodes, load: str = load) -> None:
            click.echo(f"... {nodes} nodes, {load}: {phase}", err=True)

        all_found.append(run_course(load, weights, nodes, machine, say, seed))
        for line in as_text(lines(all_found[-1])):
            click.echo(line)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(all_found), indent=1) + "\n")
    if markdown_file is not None:
        markdown_file.write_text(as_markdown(all_found))
    if any(not line.ok for found in all_found for line in lines(found)):
        sys.exit(EXIT_SHORT)
