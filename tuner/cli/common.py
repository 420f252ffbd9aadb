"""Parts of all commands: the two streams, refusals, and printing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from meshtune.tuner.cli.render.terminal import Terminal
from meshtune.tuner.cli.usage.options import Place

# A file or a pipe has no width to cut tables at.
PIPE_WIDTH = 240


def _console(*, stderr: bool) -> Terminal:
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else PIPE_WIDTH
    return Terminal(stderr=stderr, width=width)


console = _console(stderr=False)
errors = _console(stderr=True)


class Refused(Exception):
    """The command makes no sense as things are; nothing was done."""


def require_home(place: Place, command: str) -> None:
    """Raises Refused where the campaigns are at a service."""
    if place.server:
        raise Refused(f"{command} works on a home of this machine, not at a service: --server '' (MESHTUNE_SERVER)")


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def print_page(page: Iterable[RenderableType | str]) -> None:
    """Print lines and tables; only tables are cut to the width."""
    for part in page:
        console.print(part, soft_wrap=isinstance(part, str | Text))


def print_found(document: object, page: Iterable[RenderableType | str], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_page(page)
