"""`sites`."""

from __future__ import annotations

from typing import Annotated

import typer

from meshtune.tuner.cli import commands

app = typer.Typer()


@app.command()
def sites(
    name: Annotated[
        str, typer.Argument(help="The one to show, or a profile's file; none: list all.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the profiles that `runner: {site: NAME}` takes, or show one: each value, its source and how sure it is.

    A site's own lie in ~/.config/meshtune/sites, or the folder that MESHTUNE_SITES names.
    """
    if name:
        commands.sites.show(name, as_json=as_json)
    else:
        commands.sites.list_all(as_json=as_json)
