"""The command `infinistore`: a table of commands, each imported only when it is run."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from infinistore.errors import ConfigError, InfiniStoreError, UsageError

EXIT_FAILED = 1
EXIT_WRONG_CALL = 2  # as click has it


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its module has a click command named `command`."""

    name: str
    module: str
    help: str


COMMANDS = (
    Entry("serve", "infinistore.server.command", "Run a server (the default command)."),
    Entry("status", "infinistore.cli.status", "What a running server holds and does."),
    Entry("top", "infinistore.cli.top", "A running server, live; --what-if: by pool size."),
    Entry("explain", "infinistore.cli.explain", "Why a prompt or keys are hits or misses."),
    Entry("namespaces", "infinistore.cli.namespaces", "Whose keys a running server holds."),
    Entry("tenants", "infinistore.cli.tenants", "What each tenant holds, against its quota."),
    Entry("keys", "infinistore.cli.keys", "Questions about keys."),
    Entry("purge", "infinistore.cli.purge", "Erase every key of a namespace."),
    Entry("verify", "infinistore.cli.verify", "Compare every value with its checksum."),
    Entry("cluster", "infinistore.cli.cluster", "The nodes of a cluster, their load and copies."),
    Entry("drain", "infinistore.cli.drain", "Move a node's values to the others and stop it."),
    Entry("doctor", "infinistore.cli.doctor", "Check this machine and say how to mend it."),
    Entry("bench", "infinistore.cli.bench", "Measure throughput beside this machine's limits."),
    Entry("router", "infinistore.cli.router", "Front for prefill and decode vLLM instances."),
)
# Modules that an extra brings; anything else that is missing is named as such.
EXTRAS = {"torch": "torch", "vllm": "vllm", "zmq": "vllm", "aetcd": "etcd"}


class Commands(click.Group):
    """Knows every command by its row, so that --help imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = next((entry for entry in COMMANDS if entry.name == cmd_name), None)
        return load(entry) if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in COMMANDS])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.list_commands(ctx):
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"; did you mean {close[0]}?" if close else "; see infinistore --help"
            raise click.UsageError(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


def load(entry: Entry) -> click.Command:
    """The click command of `entry`."""
    command = importlib.import_module(entry.module).command
    assert isinstance(command, click.Command)
    return command


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from infinistore import __version__

        click.echo(f"infinistore {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Without a command, `infinistore` runs a server: `infinistore --pool 16GiB`. "
    "`infinistore COMMAND --help` lists a command's flags.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Show the version and exit.",
)  # fmt: skip
def group() -> None:
    """InfiniStore: a memory pool for the KV caches of LLM inference."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line in `arguments` (default: the process's own); exits with its status."""
    words = with_default_command(list(sys.argv[1:] if arguments is None else arguments))
    try:
        group.main(words, prog_name="infinistore")
    except (ConfigError, UsageError) as error:
        click.echo(f"infinistore: error: {error}", err=True)
        sys.exit(EXIT_WRONG_CALL)
    except InfiniStoreError as error:
        click.echo(f"infinistore: error: {error}", err=True)
    except ModuleNotFoundError as error:
        click.echo(f"infinistore: error: {missing_module(error.name or str(error))}", err=True)
    sys.exit(EXIT_FAILED)


def with_default_command(words: list[str]) -> list[str]:
    """`words`, with `serve` put before flags that stand alone."""
    own = {"-h", "--help", "--version"}
    if not words or (words[0].startswith("-") and words[0] not in own):
        return ["serve", *words]
    return words


def missing_module(name: str) -> str:
    """What to say, and to do, about a module that is not installed."""
    top = name.partition(".")[0]
    if top == "infinistore":
        return f"{name} is not part of this installation; reinstall infinistore"
    remedy = f"'infinistore[{EXTRAS[top]}]'" if top in EXTRAS else top
    return f"this needs {top}, which is not installed; run: pip install {remedy}"
