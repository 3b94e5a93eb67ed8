"""The server: `infinistore serve`, also as `python -m infinistore.server`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a server with the flags in `arguments` (default: the command line's); exits with it."""
    from infinistore.server.command import command  # imported late: the package stays light

    command.main(arguments, prog_name="infinistore serve")
