"""Parts of all commands: the two streams, refusals, and printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.text import Text

from meshtune.search_spaces.checks import UserError, did_you_mean, listed
from meshtune.tuner.cli.render.terminal import Terminal

# A file or a pipe has no width to cut tables at, unless COLUMNS gives one.
PIPE_WIDTH = 240
One = TypeVar("One")


def _console(*, stderr: bool) -> Terminal:
    known = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Terminal(stderr=stderr, width=None if known else PIPE_WIDTH)


console = _console(stderr=False)
errors = _console(stderr=True)


class WrongCall(UserError):
    """The command makes no sense as things are; nothing was done."""


def named(
    asked: str, of_id: Callable[[str], One], newest: Callable[..., Sequence[Any]], missing: type[Exception]
) -> One:
    """The campaign whose id is or begins so, with `last` the newest. of_id: the one of this id, else it raises
    `missing`. newest: at most `limit` of them, the newest first; None: all. Raises WrongCall."""
    if asked != "last":
        with suppress(missing):
            return of_id(asked)
    known: dict[str, One] = {one.id: one for one in newest(limit=1 if asked == "last" else None)}
    if not known:
        raise WrongCall("there is no campaign yet; start one with `meshtune run SPEC`")
    alike = [one for one in known if asked == "last" or one.startswith(asked)]
    if len(alike) != 1:
        hint = f"so begin {listed(alike[:20])}" if alike else did_you_mean(asked, [*known][:20])
        raise WrongCall(f"there is no campaign {asked}; {hint}")
    return known[alike[0]]


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def print_page(page: Iterable[RenderableType | str]) -> None:
    """Print lines and tables; only tables are cut to the width."""
    for part in page:
        console.print(part, soft_wrap=isinstance(part, str | Text))


def print_found(document: object, page: Iterable[RenderableType | str], as_json: bool) -> None:
    """document: anything that `plain` makes JSON of."""
    if as_json:
        from meshtune.runners.documents import plain  # dear, and for this alone

        print_json(plain(document))
    else:
        print_page(page)
