"""`calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import (
    DEFAULT_HOME,
    ClusterFileOption,
    DatabaseOption,
    HomeOption,
    JsonOption,
)

app = typer.Typer()


@app.command()
def calibrate(
    spec: Annotated[Path | None, typer.Argument(help="Campaign spec, YAML.", show_default=False)] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Of the spec's cluster; default: 1.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Of one node, in place of all of it.")] = None,
    trials: Annotated[int, typer.Option(min=3, help="How many at the most.")] = 8,
    cluster: ClusterFileOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured; start nothing.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the stored calibrations.")] = False,
    delete: Annotated[str, typer.Option(metavar="CAMPAIGN", help="Delete a stored calibration.")] = "",
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Measure the physics' constants on one node, and keep them for predictions and searches on any number of nodes.

    Eight short trials of the spec's own training code. They hold for its device, training code and release.
    """
    commands.calibrate.calibrate(
        *(spec, home, db),
        nodes=nodes,
        devices=devices,
        trials=trials,
        cluster=cluster,
        dry_run=dry_run,
        listed=listed,
        delete=delete,
        as_json=as_json,
    )
