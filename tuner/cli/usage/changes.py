"""`edit` and `enqueue`."""

from __future__ import annotations

from typing import Annotated

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import (
    DEFAULT_HOME,
    CampaignId,
    DatabaseOption,
    DeviceHoursOption,
    HomeOption,
    Limits,
    Place,
    ServerOption,
    TrialsOption,
    WallTimeOption,
)

app = typer.Typer()


@app.command()
def edit(
    campaign: CampaignId,
    name: Annotated[str | None, typer.Option(help="Another name; the id stays.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="In place of its tags; may stand several times.")] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Without any tag.")] = False,
    notes: Annotated[str | None, typer.Option(help="Text in place of its notes; empty for none.")] = None,
    trials: TrialsOption = None,
    wall_time_s: WallTimeOption = None,
    device_hours: DeviceHoursOption = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Change a campaign's name, tags, notes or budget; one that is complete goes on with a larger budget."""
    commands.changes.edit(
        campaign,
        Place(home, db, server),
        name=name,
        tags=[] if no_tags else tag,
        notes=notes,
        limits=Limits(trials, wall_time_s, device_hours),
    )


@app.command()
def enqueue(
    campaign: CampaignId,
    plan: Annotated[str, typer.Argument(help="Fields of a plan and knobs, such as tp=4,pp=2; dp follows.")],
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Put a plan in by hand: it runs before the search's next choice."""
    commands.changes.enqueue(campaign, plan, Place(home, db, server))
