"""The commands that drive a campaign, change it and show it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshtune.tuner.cli.common import WrongCall, console, print_page
from meshtune.tuner.cli.options import CampaignId, ClusterFileOption, GivenLimits, Place, SpecFile, placed

if TYPE_CHECKING:
    from meshtune.tuner.cli.at_home import CampaignAtHome
    from meshtune.tuner.cli.at_service import CampaignAtService

app = typer.Typer()
PANEL = "Campaigns"
# Campaigns of a list at the most.
MAX_LISTED = 50


@app.command(rich_help_panel=PANEL, short_help="Create a campaign from a spec, and work on it until it is done.")
@placed
def run(
    spec: SpecFile,
    place: Place,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show quote and first job; start nothing.")] = False,
    cluster: ClusterFileOption = None,
    project: Annotated[str, typer.Option(help="Whose tokens share it, in place of the spec's; none: as there.")] = "",
) -> None:
    """Create a campaign from a spec and work on it until it is done. Ctrl-C leaves it to `meshtune resume`.

    With --server the service works on it, and this command follows it; Ctrl-C leaves it running."""
    from meshtune.tuner.cli.spec_file import read_spec_file, stored_basis, text_of
    from meshtune.tuner.cli.telling import dry_run_lines, print_missing, print_result
    from meshtune.tuner.specs.document import changed_document
    from meshtune.tuner.specs.read import quoted

    if place.server:
        from meshtune.tuner.cli.at_service import AtService
        from meshtune.tuner.cli.render.predictions import quote_parts

        if dry_run:
            quote = AtService(place).estimate(spec, cluster=cluster, project=project, to_run=True)
            print_page(quote_parts(quote))
            console.print("no job is shown: its files are made where the service is", soft_wrap=True)
            return
        with AtService(place).created(spec, cluster=cluster, project=project) as created:
            print_result(created.followed())
        return
    # Before anything is created, so that a mistake leaves nothing behind.
    document, campaign_spec, space = read_spec_file(spec, place.home, cluster)
    if project:
        campaign_spec = replace(campaign_spec, project=project)  # raises InvalidValue
        document = changed_document(document, {"project": project})
    print_missing(campaign_spec, place.home)
    quote = quoted(document, campaign_spec, space, stored_basis(campaign_spec, place))
    if dry_run:
        print_page(dry_run_lines(campaign_spec, quote, place.home))
        return
    from meshtune.tuner.cli.at_home import run_here

    print_page(quote.memory_needs)
    print_result(run_here(place, campaign_spec, space, quote, text_of(spec, document)))


@app.command(rich_help_panel=PANEL, short_help="Go on with a campaign that was interrupted or paused.")
@placed
def resume(place: Place, limits: GivenLimits, campaign: CampaignId = "last") -> None:
    """Go on with a campaign that was interrupted or paused, or, with a larger budget, with one that is complete."""
    from meshtune.tuner.cli.telling import print_result

    with place.there.opened(campaign) as chosen:
        if limits.changes:
            chosen.update(**limits.changes)
        require_going_on(chosen, "resume")
        if (ended := chosen.worked_on()) is not None:
            print_result(ended)


@app.command(rich_help_panel=PANEL, short_help="Start no more trials; running ones are measured to their end.")
@placed
def pause(place: Place, campaign: CampaignId = "last") -> None:
    """Start no more trials; running ones are measured to their end."""
    with place.there.opened(campaign) as chosen:
        require_going_on(chosen, "pause")
        chosen.pause()
    console.print(f"{chosen.id} is paused; `meshtune resume {chosen.id}{place.option}` goes on", soft_wrap=True)


@app.command(rich_help_panel=PANEL, short_help="End a campaign and its jobs; what was measured stays.")
@placed
def cancel(campaign: CampaignId, place: Place) -> None:
    """End a campaign and its running jobs; what was measured stays."""
    with place.there.opened(campaign) as chosen:
        require_going_on(chosen, "cancel")
        console.print(f"{chosen.id} is {chosen.cancelled()}")


@app.command(rich_help_panel=PANEL, short_help="Delete a campaign that is over, with all that was measured.")
@placed
def delete(
    campaign: CampaignId,
    place: Place,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
) -> None:
    """Delete a campaign that is over: its trials with what they measured, its events, and the folders of its jobs."""
    with place.there.opened(campaign) as chosen:
        if not chosen.state.final:
            raise WrongCall(f"{chosen.id} is {chosen.state}: `meshtune cancel {chosen.id}{place.option}` ends it first")
        if not yes and not (sys.stdin.isatty() and console.is_terminal):
            raise WrongCall(f"there is no terminal to ask on: --yes deletes {chosen.id}")
        if not yes:
            typer.confirm(f"Delete {chosen.id}, with all that it measured?", abort=True)
        chosen.delete()
    console.print(f"{chosen.id} is deleted")


@app.command(rich_help_panel=PANEL, short_help="Change its name, tags, notes or budget; extend one that ended.")
@placed
def edit(
    place: Place,
    limits: GivenLimits,
    campaign: CampaignId = "last",
    name: Annotated[str | None, typer.Option(help="Another name; the id stays.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="In place of its tags; may stand several times.")] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Without any tag.")] = False,
    notes: Annotated[str | None, typer.Option(help="Text in place of its notes; empty for none.")] = None,
) -> None:
    """Change a campaign's name, tags, notes or budget; one that is complete goes on with a larger budget."""
    from meshtune.tuner.cli.render.display import limits_text

    given: dict[str, Any] = {"name": name, "tags": [] if no_tags else tag, "notes": notes}
    changes = {key: value for key, value in given.items() if value is not None}
    changes |= limits.changes
    if not changes:
        raise WrongCall(
            "edit: say what is to change: --name, --tag, --notes, --trials, --wall-time-s, --device-hours or "
            "--time-limit-s"
        )
    with place.there.opened(campaign) as chosen:
        was_over = chosen.state.final
        chosen.update(**changes)
        numbers = f"; {limits_text(chosen.record().campaign)}" if {"budget", "trial"} & {*changes} else ""
    console.print(f"{chosen.id} is changed: {', '.join(changes)}{numbers}", soft_wrap=True)
    if was_over and chosen.state.active:
        console.print(f"it goes on: `meshtune resume {chosen.id}{place.option}` works on it", soft_wrap=True)


def require_going_on(campaign: CampaignAtHome | CampaignAtService, verb: str) -> None:
    """Raises WrongCall for a campaign that is over."""
    if campaign.state.final:
        why = campaign.reason.partition("\n")[0]  # without the end of a log
        raise WrongCall(f"{campaign.id} is {campaign.state} ({why}): there is nothing to {verb}")


@app.command(rich_help_panel=PANEL, short_help="Put a plan in by hand, before the search's next choice.")
@placed
def enqueue(
    campaign: CampaignId,
    plan: Annotated[str, typer.Argument(help="Fields of a plan and knobs, such as tp=4,mbs=2; dp follows.")],
    place: Place,
) -> None:
    """Put a plan in by hand: it runs before the search's next choice."""
    with place.there.opened(campaign) as chosen:
        made = chosen.enqueue(plan)
    console.print(
        f"trial {made.number} of {chosen.id}: {made.plan.key}, before the search's next choice", soft_wrap=True
    )


@app.command(rich_help_panel=PANEL, short_help="Show a campaign with its trials, one trial, or all campaigns.")
@placed
def show(
    place: Place,
    campaign: CampaignId = "last",
    trial: Annotated[int | None, typer.Option(min=0, help="Everything of this one trial.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List all campaigns, the newest first.")] = False,
) -> None:
    """Show a campaign with every trial, or one trial with all that is known of it; with --all list the campaigns."""
    from meshtune.tuner.cli.render.display import campaigns_table
    from meshtune.tuner.cli.render.trial import trial_page
    from meshtune.tuner.cli.telling import print_campaign, trial_of

    if every:
        if campaign != "last" or trial is not None:
            raise WrongCall("--all lists every campaign: it goes with neither a campaign nor --trial")
        console.print(campaigns_table(place.there.listed(MAX_LISTED)))
        return
    with place.there.opened(campaign) as chosen:
        record = chosen.record()
        if trial is None:
            print_campaign(record, chosen.waits(), chosen.excluded_nodes())
            return
    spec, shown = record.campaign.spec, trial_of(record, str(trial))
    print_page(trial_page(shown, spec.knobs, spec.model.worded("tokens/s")).renderables)
