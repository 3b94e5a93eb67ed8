"""The server: `infinistore serve`, also as `python -m infinistore.server`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from infinistore.server.original import parse_args, periodic_evict

__all__ = ["asyncio", "main", "parse_args", "periodic_evict"]  # the original's names, too


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a server with the flags in `arguments` (default: the command line's); exits with it."""
    from infinistore.server.command import command  # imported late: the package stays light

    command.main(arguments, prog_name="infinistore serve")
