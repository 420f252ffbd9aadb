"""The one place where text enters Rich and so a terminal. Names, reasons and logs come from outside: what would move
the cursor, set the clipboard or turn the direction of writing is shown by its number, and markup is text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from meshtune.runners.untrusted_text import CONTROLS, visible

# A row of a table takes no more, where its columns can be left out.
ROW_LINES = 2
# Wider than any table.
_UNBOUND = 100_000


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
        room, every = options.max_width, {str(column.header): None for column in self.columns}
        if self._width(console, every) <= room:
            yield self._narrowed(every)
            return
        least = {str(column.header): _least_width(console, column) for column in self.columns}
        kept = {name: width for name, width in least.items() if name not in self.spare}
        for name in reversed(self.spare):
            wider = {one: width for one, width in least.items() if one in kept or one == name}
            kept = wider if self._width(console, wider) <= room else kept
        free = room - self._width(console, kept)
        for column in self.columns:
            name = str(column.header)
            if free > 0 and name in kept:
                more = min(free, max(console.measure(cell).maximum for cell in (name, *column.cells)) - kept[name])
                kept[name], free = kept[name] + more, free - more
        # Even the columns that stay are too wide: their rows take more lines.
        yield self._narrowed(kept if free >= 0 else dict.fromkeys(kept))
        if left := [name for name in every if name not in kept]:
            yield Text(
                f"left out here: {', '.join(left)}; COLUMNS={self._width(console, least)} shows all", style="dim"
            )

    def _narrowed(self, widths: Mapping[str, int | None]) -> Table:
        """With these columns alone, of these widths; None: as their cells need."""
        columns = [replace(each, width=widths[name]) for each in self.columns if (name := str(each.header)) in widths]
        table = Table(*columns, title=self.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        table.padding, table.caption, table.caption_justify = (0, 1, 0, 0), self.caption, "left"
        table.rows = self.rows
        return table

    def _width(self, console: Console, widths: Mapping[str, int | None]) -> int:
        options = console.options.update(width=_UNBOUND)
        return Measurement.get(console, options, self._narrowed(widths)).maximum


def _least_width(console: Console, column: Column) -> int:
    """At which every cell takes two lines at most, and no word is cut; numbers are never split."""
    cells = [each if isinstance(each, Text) else console.render_str(str(each)) for each in column.cells]
    texts = [console.render_str(str(column.header)), *([] if column.justify == "right" else cells)]
    width = max(console.measure(text).minimum for text in (*texts, *cells))
    if column.justify == "right":
        width = max((width, *(cell.cell_len for cell in cells)))
    for text in texts:
        while width < text.cell_len and len(text.wrap(console, width)) > ROW_LINES:
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
