"""`python -m demo`: see the package."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from demo import client, engines
from demo.children import ChildError
from demo.run import Plan, main

_BUILD = engines.ROOT / "build"


@click.command()
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=_BUILD / "models" / "smollm2-135m",
    show_default=True,
    help="A model's directory; the float32 CPU build of vLLM must run it.",
)
@click.option(
    "--transport",
    "transports",
    type=click.Choice(["shm", "tcp"]),
    multiple=True,
    default=("shm", "tcp"),
    show_default=True,
    help="Over which transports; may be given twice.",
)
@click.option("--max-tokens", default=8, show_default=True, help="Tokens of each answer.")
@click.option("--prompt", "prompt_names", multiple=True, help="Only the prompts of these names.")
@click.option(
    "--build",
    type=click.Path(file_okay=False, path_type=Path),
    default=_BUILD,
    help="Where demo.json and the logs go.",
)
def command(
    model: Path,
    transports: tuple[str, ...],
    max_tokens: int,
    prompt_names: tuple[str, ...],
    build: Path,
) -> None:
    """Compare plain vLLM with prefill and decode through the store, token by token."""
    plan = Plan(model, build, tuple(dict.fromkeys(transports)), max_tokens, prompt_names)
    try:
        sys.exit(main(plan))
    except (ChildError, client.AskError, OSError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt as error:
        sys.exit(f"demo: stopped by {error or 'Ctrl-C'}")


command()
