"""The one place where text enters Rich and so a terminal. Names, reasons and logs come from outside: what would move
the cursor, set the clipboard or turn the direction of writing is shown by its number, and markup is text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
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


class Listing(Table):
    """A table that leaves columns out, rather than cut a cell or give a row more than two lines, and says so below.
    spare: the columns that may be left out, the least important first. Without lines between the columns, which would
    take a fifth of a narrow terminal."""

    spare: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        room, whole = options.max_width, dict.fromkeys((str(column.header) for column in self.columns), 0)
        if self._width(console, whole) <= room:
            yield self._narrowed(whole)
            return
        least = {str(column.header): _least_width(console, column) for column in self.columns}
        kept = {name: width for name, width in least.items() if name not in self.spare}
        for name in reversed(self.spare):
            wider = {one: width for one, width in least.items() if one in kept or one == name}
            kept = wider if self._width(console, wider) <= room else kept
        yield self._narrowed(kept | {max(kept, key=kept.__getitem__): 0})
        if left := [name for name in least if name not in kept]:
            needed = self._width(console, least)
            yield Text(f"left out here: {', '.join(left)}; COLUMNS={needed} shows all", style="dim")

    def _narrowed(self, widths: Mapping[str, int]) -> Table:
        """With these columns alone, of these widths; 0: of what is left."""
        named = [(each, widths.get(str(each.header))) for each in self.columns]
        table = Table(*(replace(each, width=width or None) for each, width in named if width is not None))
        table.title, table.caption, table.rows = self.title, self.caption, self.rows
        table.box, table.pad_edge, table.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
        table.title_justify = table.caption_justify = "left"
        return table

    def _width(self, console: Console, widths: Mapping[str, int]) -> int:
        return console.measure(self._narrowed(widths), options=console.options.update(width=100_000)).maximum


def _least_width(console: Console, column: Column) -> int:
    """At which the head and every cell take two lines at most, and no word is cut; numbers are never split."""
    head, *cells = [
        each if isinstance(each, Text) else console.render_str(str(each)) for each in (column.header, *column.cells)
    ]
    unsplit = cells if column.justify == "right" else []
    width = max([console.measure(text).minimum for text in (head, *cells)] + [text.cell_len for text in unsplit])
    for text in (head, *cells):
        while width < text.cell_len and len(text.wrap(console, width)) > 2:
            width += 1
    return width


def new_table(title: str, *names: str, right: Sequence[str] = (), spare: Sequence[str] = ()) -> Table:
    """A table with columns that fold; those of `right` hold numbers, and come last where `names` lacks them. spare:
    what a narrow terminal leaves out first, see `Listing`; names that the table lacks are passed over."""
    table = Listing(title=title or None)
    for name in dict.fromkeys((*names, *right)):
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    table.spare = [name for name in spare if name in (*names, *right)]
    return table
