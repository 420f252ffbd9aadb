"""`examples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli import commands

app = typer.Typer()


@app.command()
def examples(
    name: Annotated[str, typer.Argument(help="The one to write; none: list all.", show_default=False)] = "",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Write `examples/` into this folder.")
    ] = Path(),
) -> None:
    """List the campaigns that come with meshtune, or write one: its spec, and the script that it trains with.

    It is written where the documentation has it, such as examples/demo.yaml, so that its commands work as they stand.
    """
    if name:
        commands.examples.write(name, output)
    else:
        commands.examples.show()
