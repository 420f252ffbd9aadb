"""`export-data` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import DEFAULT_HOME, CampaignId, DatabaseOption, HomeOption, Place, ServerOption

app = typer.Typer()


@app.command("export-data")
def export_data(
    campaign: CampaignId,
    format: Annotated[Literal["csv", "parquet", "json"], typer.Option(help="json has every step and attempt.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; default: print, but for parquet.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Write the trials of a campaign as a table with a row for each, or the whole campaign as JSON."""
    commands.reports.export_data(campaign, Place(home, db, server), format=format, output=output)


@app.command()
def report(
    campaigns: Annotated[list[str], typer.Argument(help="Campaign ids, or `last` for the newest.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")],
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Write campaigns as one HTML file with figures and tables, which needs no network and prints well."""
    commands.reports.report(campaigns, Place(home, db, server), output=output)
