"""The command line: `meshtune run|resume|show|best|analyze|import|export|rerun|revalidate|spaces|estimate|project|
recommend|sbatch|pause|cancel|serve|db`.

Exit codes: 0 done, or paused with the reason told; 1 the campaign ended without a measured setting; 2 a mistake in what
was asked for, or something that meshtune needs and does not get, told in one message; 130 interrupted, and the campaign
can be resumed.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from meshtune.runners.base import RunnerError
from meshtune.runners.dialects.base import CannotExpress
from meshtune.runners.extras import MissingExtra
from meshtune.runners.registry import UnknownBackend
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.cli.commands.analyze import analysis_app
from meshtune.tuner.cli.commands.cluster import cluster_app
from meshtune.tuner.cli.commands.db import db_app
from meshtune.tuner.cli.commands.estimate import estimate_app
from meshtune.tuner.cli.commands.import_script import import_app
from meshtune.tuner.cli.commands.recommend import recommend_app
from meshtune.tuner.cli.commands.rerun import remeasure_app
from meshtune.tuner.cli.commands.sbatch import sbatch_app
from meshtune.tuner.cli.commands.serve import serve_app
from meshtune.tuner.cli.commands.token import token_app
from meshtune.tuner.cli.common import Refused, find_campaign, named_options, open_service, plan_fields, read_spec_file
from meshtune.tuner.cli.dry_run import rehearsal
from meshtune.tuner.cli.options import (
    DEFAULT_HOME,
    CampaignId,
    DatabaseOption,
    HomeOption,
    JsonOption,
    SpecFile,
    print_json,
)
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.terminal import (
    console,
    errors,
    follow,
    print_best,
    print_campaign,
    print_campaigns,
    print_trial,
)
from meshtune.tuner.results.export import FORMATS, NothingToExport, best_document, choose, export_of, write_export
from meshtune.tuner.search.base import SearchError
from meshtune.tuner.service.leases import CampaignBusy
from meshtune.tuner.service.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import StoreError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cluster_app, name="cluster")
app.add_typer(token_app, name="token")
app.add_typer(db_app, name="db")
app.add_typer(estimate_app)
app.add_typer(analysis_app)
app.add_typer(recommend_app)
app.add_typer(sbatch_app)
app.add_typer(remeasure_app)
app.add_typer(import_app)
app.add_typer(serve_app)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(version("meshtune"))
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the fastest way to lay one training job over one cluster."""


# What a user can mend; anything else is a defect of ours and keeps its traceback.
USER_ERRORS = (
    *(Refused, InvalidValue, StoreError, RunnerError, SearchError, UnknownBackend, MissingExtra),
    *(CampaignBusy, NothingToExport, CannotExpress, OSError),
)


@app.command()
def run(
    spec: SpecFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show quote and first job; start nothing.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Create a campaign from a spec and work on it until it is done. Ctrl-C leaves it to `meshtune resume`."""
    # Before anything is created, so that a mistake leaves nothing behind.
    document, campaign_spec, space = read_spec_file(spec, home)
    if dry_run:
        for line in rehearsal(campaign_spec, space, home):
            console.print(line, soft_wrap=True)
        return
    with open_service(home, db, create=True) as service:
        _work_on(service, service.create(document, drives=True))


@app.command()
def resume(campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Go on with a campaign that was interrupted or paused."""
    with open_service(home, db) as service:
        known = find_campaign(service, campaign)
        if known.state.final:
            why = known.reason.partition("\n")[0]  # without the end of a log
            raise Refused(f"{known.id} is {known.state} ({why}): there is nothing to resume")
        try:
            _work_on(service, service.resume(known.id) if known.state.resting else known)
        except CampaignBusy as busy:
            if not known.state.resting:
                raise
            console.print(f"{known.id} goes on: {busy}")


@app.command()
def pause(campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Start no more trials; running ones are measured to their end."""
    with open_service(home, db) as service:
        known = service.pause(find_campaign(service, campaign).id)
        console.print(f"{known.id} is paused; `meshtune resume {known.id}` goes on")


@app.command()
def cancel(campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """End a campaign and its running jobs; what was measured stays."""
    with open_service(home, db) as service:
        known = find_campaign(service, campaign)
        if known.state is not CampaignState.CANCELLING:  # else an earlier cancel was interrupted: finish it
            service.cancel(known.id)
        try:
            drive_one(Driver(service), service, known.id, lambda: None)
        except CampaignBusy as busy:
            console.print(f"{known.id} is being cancelled: {busy}")
        else:
            console.print(f"{known.id} is {service.store.campaign(known.id).state}")


@app.command()
def show(
    campaign: Annotated[str, typer.Argument(help="Campaign id or `last`; none: all campaigns.")] = "",
    trial: Annotated[int | None, typer.Option(min=0, help="Everything of this one trial.")] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Show all campaigns, or one with every trial, or one trial with all that is known of it."""
    if trial is not None and not campaign:
        raise Refused(f"--trial {trial} needs a campaign: `meshtune show last --trial {trial}`")
    with open_service(home, db) as service:
        if not campaign:
            print_campaigns(service)
            return
        chosen = find_campaign(service, campaign)
        if trial is None:
            print_campaign(chosen, service)
        else:
            print_trial(service.store.trial(chosen.id, trial))


@app.command()
def best(
    campaign: CampaignId,
    top: Annotated[int, typer.Option(min=1, help="How many settings.")] = 10,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Print the best settings measured, with intervals, memory and the gain over the baseline."""
    with open_service(home, db) as service:
        chosen = find_campaign(service, campaign)
        trials = service.store.trials(chosen.id)
        if as_json:
            print_json(best_document(chosen, trials, top))
        else:
            print_best(chosen, service, top)


@app.command()
def export(
    campaign: CampaignId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")],
    trial: Annotated[str, typer.Option(help="`recommended`, `best`, `worst` or a trial's number.")] = "recommended",
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}; default: json and job.")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="name=value for the format's scheduler or program, such as queue=gpu.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Write a setting as setting.json and as the job file that measures it again, or in another program's words."""
    with open_service(home, db) as service:
        chosen = find_campaign(service, campaign)
        entry = choose(chosen, service.store.trials(chosen.id), trial)
        setting = export_of(chosen, entry, output, named_options(option or []))
        for path in write_export(setting, output, format):
            console.print(f"wrote {path}", soft_wrap=True)


@app.command()
def spaces(
    spec: SpecFile,
    why: Annotated[str, typer.Option(help="Explain one plan, such as tp=4,pp=2,zero_stage=1.")] = "",
    plans: Annotated[bool, typer.Option("--list", help="List every legal plan.")] = False,
) -> None:
    """Show the space of a spec: how many plans are legal, what rejects the others, why a plan is not legal."""
    _, _, space = read_spec_file(spec, None)
    if why:
        plan = space.complete(**plan_fields(why))
        broken = space.explain(plan)
        console.print(f"{plan.key}: {'illegal' if broken else 'legal'}", soft_wrap=True)
        for violation in broken:
            console.print(f"  {violation.constraint}: {violation.message}; {violation.reason}", soft_wrap=True)
        return
    console.print(display.space_text(space), soft_wrap=True)
    console.print(display.space_table(space))
    if plans:
        for plan in space:
            console.print(plan.key, soft_wrap=True)


def _work_on(service: Service, campaign: Campaign) -> None:
    """Drive a campaign with live progress, and print its result."""
    try:
        follow(service, campaign)
    except KeyboardInterrupt:
        console.print(
            f"\nInterrupted. Running trials go on by themselves and are collected by `meshtune resume {campaign.id}`; "
            f"`meshtune cancel {campaign.id}` ends them.",
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    ended = service.store.campaign(campaign.id)
    console.print(f"{ended.id} is {ended.state}: {ended.reason}", soft_wrap=True)
    if not print_best(ended, service, 10) and ended.state.final:
        raise typer.Exit(1)


def _message(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return str(error)


def main() -> None:
    """The entry point of the `meshtune` command."""
    try:
        app()
    except USER_ERRORS as error:
        errors.print(f"meshtune: {_message(error)}", style="red", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
