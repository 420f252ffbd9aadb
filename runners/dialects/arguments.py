"""A command line's arguments by name: read from words, changed, and written back as a shell would take them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

# name -> its values, in order; none for a switch. Of a name that stands twice the last counts, as in argparse.
Arguments = Mapping[str, tuple[str, ...]]
_NAME = re.compile(r"(--[A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)


def read_arguments(words: Sequence[str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments that words name, and the words before the first name."""
    found: dict[str, list[str]] = {}
    loose: list[str] = []
    current: str | None = None
    for word in words:
        if name := _NAME.fullmatch(word):
            current, value = name[1], name[2]
            found[current] = [] if value is None else [value]
        elif current is None:
            loose.append(word)
        else:
            found[current].append(word)
    return {name: tuple(values) for name, values in found.items()}, tuple(loose)


def read_lines(lines: Iterable[str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments in texts such as `--lr 1e-4`, quoted as for a shell. Raises ValueError for an open quote."""
    return read_arguments([word for line in lines for word in shlex.split(line)])


def render_lines(arguments: Arguments) -> list[str]:
    """One text per argument, which `read_lines` gives back."""
    return [shlex.join((name, *values)) for name, values in arguments.items()]


def without(arguments: Arguments, names: Collection[str]) -> Arguments:
    """The arguments but for these. A name that ends in `*` stands for all that begin like it."""
    starts = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: values
        for name, values in arguments.items()
        if name not in names and not (starts and name.startswith(starts))
    }
