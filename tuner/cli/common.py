"""Parts of all commands: the two streams, refusals, and printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from rich.console import RenderableType
from rich.text import Text

from meshtune.search_spaces.checks import UserError, did_you_mean
from meshtune.tuner.cli.render.terminal import Terminal

# A file or a pipe has no width to cut tables at, unless COLUMNS gives one.
PIPE_WIDTH = 240


def _console(*, stderr: bool) -> Terminal:
    known = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Terminal(stderr=stderr, width=None if known else PIPE_WIDTH)


console = _console(stderr=False)
errors = _console(stderr=True)


class WrongCall(UserError):
    """The command makes no sense as things are; nothing was done."""


def refuse_unknown(campaign_id: str, known: Sequence[str]) -> NoReturn:
    """Raises WrongCall. known: the newest campaigns that there are."""
    if campaign_id == "last":
        raise WrongCall("there is no campaign yet; start one with `meshtune run SPEC`")
    hint = did_you_mean(campaign_id, known) if known else "there is none yet"
    raise WrongCall(f"there is no campaign {campaign_id}; {hint}") from None


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
