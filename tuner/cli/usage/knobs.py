"""`knobs`."""

from __future__ import annotations

from typing import Annotated

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import JsonOption

app = typer.Typer()


@app.command()
def knobs(
    catalog: Annotated[str, typer.Argument(help="The one to show; none: list all.", show_default=False)] = "",
    as_json: JsonOption = False,
) -> None:
    """List the catalogs that `catalogs: [NAME]` in a spec takes, or show one: each knob, its values, how a job is told,
    its source, and its risk. `catalogs: [CATALOG.KNOB]` takes one knob."""
    commands.knobs.knobs(catalog, as_json=as_json)
