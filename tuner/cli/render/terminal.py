"""The one place where text enters Rich and so a terminal. Names, reasons and logs come from outside: what would move
the cursor, set the clipboard or turn the direction of writing is shown by its number, and markup is text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from meshtune.runners.untrusted_text import CONTROLS, visible


class Terminal(Console):
    """A console that escapes what it is given; Rich's own styles are added below that."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and CONTROLS.search(renderable.plain):
            shown = Text(style=renderable.style, justify=renderable.justify, overflow=renderable.overflow)
            ends = {end for match in CONTROLS.finditer(renderable.plain) for end in match.span()}
            for part in renderable.divide(sorted(ends)):
                shown.append(visible(part.plain), part.spans[0].style if part.spans else None)
            renderable = shown
        return super().render(renderable, options)


def new_table(title: str, *names: str, right: Sequence[str] = ()) -> Table:
    """A table with columns that fold; those of `right` hold numbers, and come last where `names` lacks them. Without
    lines between the columns, which would take a fifth of a narrow terminal."""
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in dict.fromkeys((*names, *right)):
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
