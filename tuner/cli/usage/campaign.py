"""`run`, `resume`, `pause`, `cancel`, `edit`, `enqueue`, `show` and `best`."""

from __future__ import annotations

from typing import Annotated

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import (
    DEFAULT_HOME,
    CampaignId,
    ClusterFileOption,
    DatabaseOption,
    DeviceHoursOption,
    HomeOption,
    JsonOption,
    Limits,
    Place,
    ServerOption,
    SpecFile,
    TrialsOption,
    WallTimeOption,
)

app = typer.Typer()


@app.command()
def run(
    spec: SpecFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show quote and first job; start nothing.")] = False,
    cluster: ClusterFileOption = None,
    project: Annotated[str, typer.Option(help="Whose tokens share it, in place of the spec's; none: as there.")] = "",
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Create a campaign from a spec and work on it until it is done. Ctrl-C leaves it to `meshtune resume`.

    With --server the service works on it, and this command follows it; Ctrl-C leaves it running."""
    commands.campaign.run(spec, Place(home, db, server), dry_run=dry_run, cluster=cluster, project=project)


@app.command()
def resume(
    campaign: CampaignId,
    trials: TrialsOption = None,
    wall_time_s: WallTimeOption = None,
    device_hours: DeviceHoursOption = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Go on with a campaign that was interrupted or paused, or, with a larger budget, with one that is complete."""
    limits = Limits(trials, wall_time_s, device_hours)
    commands.campaign.resume(campaign, Place(home, db, server), limits)


@app.command()
def pause(
    campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "", server: ServerOption = ""
) -> None:
    """Start no more trials; running ones are measured to their end."""
    commands.campaign.pause(campaign, Place(home, db, server))


@app.command()
def cancel(
    campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "", server: ServerOption = ""
) -> None:
    """End a campaign and its running jobs; what was measured stays."""
    commands.campaign.cancel(campaign, Place(home, db, server))


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
    commands.campaign.edit(
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
    commands.campaign.enqueue(campaign, plan, Place(home, db, server))


@app.command()
def show(
    campaign: Annotated[str, typer.Argument(help="Campaign id or `last`; none: all campaigns.")] = "",
    trial: Annotated[int | None, typer.Option(min=0, help="Everything of this one trial.")] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Show all campaigns, or one with every trial, or one trial with all that is known of it."""
    commands.campaign.show(campaign, Place(home, db, server), trial=trial)


@app.command()
def best(
    campaign: CampaignId,
    top: Annotated[int, typer.Option(min=1, help="How many settings.")] = 10,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Print the best settings measured, with intervals, memory and the gain over the baseline."""
    commands.campaign.best(campaign, Place(home, db, server), top=top, as_json=as_json)
