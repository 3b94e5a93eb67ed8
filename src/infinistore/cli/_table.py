"""Tables as all commands show them: no borders, numbers to the right, nothing cut in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_COLUMNS = 200


def console() -> Console:
    """Of stdout: as wide as the terminal, or wide enough for whoever reads a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def make_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    title: str | None = None,
) -> Table:
    """Texts are shown as they are: what a peer named is no markup. `numbers`: right columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def show_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()
) -> None:
    console().print(make_table(headings, rows, numbers))
