"""Tables as all commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table


def new_table(title: str, *names: str, right: Sequence[str] = ()) -> Table:
    """A table with columns that fold; those of `right` hold numbers, and come last where `names` lacks them. Without
    lines between the columns, which would take a fifth of a narrow terminal."""
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in dict.fromkeys((*names, *right)):
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
