"""The commands that drive a campaign, change it and show it: `run`, `resume`, `pause`, `cancel`, `edit`, `enqueue`,
`show` and `best`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from meshtune.runners.documents import plain
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.spec import CampaignSpec, job_of, space_of
from meshtune.tuner.campaign.stopping import phase_text
from meshtune.tuner.campaign.trial import Trial, job_name
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.cli import commands
from meshtune.tuner.cli.common import Refused, console, print_json, print_page
from meshtune.tuner.cli.following import work_on
from meshtune.tuner.cli.opening import open_campaign, open_service, recorded
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.analysis import forecast_sentence
from meshtune.tuner.cli.render.knobs import scaling_table
from meshtune.tuner.cli.render.predictions import quote_parts
from meshtune.tuner.cli.render.trial import trial_page
from meshtune.tuner.cli.render.winners import SIMULATED, winner_lines
from meshtune.tuner.cli.spec_file import plan_fields, read_spec_file, stored_basis, text_of
from meshtune.tuner.cli.usage.options import Limits, Place
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import make_quote
from meshtune.tuner.results.analysis.forecast_check import check_forecasts
from meshtune.tuner.results.export import FORMATS, Export
from meshtune.tuner.results.handover import measured_with, origin_verb
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.sizes import scaling_curve
from meshtune.tuner.results.views import best_view
from meshtune.tuner.results.winners import winners_of
from meshtune.tuner.search.warm_start import lessons_text
from meshtune.tuner.service.changing import require_legal
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.leases import CampaignBusy
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.views.campaigns import CampaignView
from meshtune.tuner.specs.document import changed_document
from meshtune.tuner.store import NotFound

# Stands where a campaign has its id, whose end is drawn when it is created.
CAMPAIGN = "dry-run"
# Campaigns of a list at the most.
MAX_LISTED = 50


def run(spec: Path, place: Place, *, dry_run: bool, cluster: Path | None, project: str) -> None:
    if place.server:
        commands.remote.run(spec, place, dry_run=dry_run, cluster=cluster, project=project)
        return
    # Before anything is created, so that a mistake leaves nothing behind.
    document, campaign_spec, space = read_spec_file(spec, place.home, cluster)
    if project:
        replace(campaign_spec, project=project)  # raises InvalidValue
        document = changed_document(document, {"project": project})
    if dry_run:
        print_page(dry_run_lines(campaign_spec, space, place.home, stored_basis(campaign_spec, place.home, place.db)))
        return
    with open_service(place.home, place.db, create=True) as service:
        _print_worked_on(service, service.create(document, drives=True, text=text_of(spec, document)))


def resume(campaign: str, place: Place, limits: Limits) -> None:
    if place.server:
        commands.remote.resume(campaign, place, limits)
        return
    with open_campaign(place.home, place.db, campaign) as (service, known):
        if budget := limits.given:
            known = service.changing.change(known.id, {"budget": budget})
        require_going_on(known, "resume")
        try:
            resumed = service.resume(known.id) if known.state.resting else known
            _print_worked_on(service, resumed)
        except CampaignBusy as busy:
            if not known.state.resting:
                raise
            console.print(f"{known.id} goes on: {busy}")


def pause(campaign: str, place: Place) -> None:
    if place.server:
        id = commands.remote.pause(campaign, place)
    else:
        with open_campaign(place.home, place.db, campaign) as (service, known):
            require_going_on(known, "pause")
            id = service.pause(known.id).id
    console.print(f"{id} is paused; `meshtune resume {id}{place.option}` goes on", soft_wrap=True)


def cancel(campaign: str, place: Place) -> None:
    if place.server:
        commands.remote.cancel(campaign, place)
        return
    with open_campaign(place.home, place.db, campaign) as (service, known):
        require_going_on(known, "cancel")
        if known.state is not CampaignState.CANCELLING:  # else an earlier cancel was interrupted: finish it
            service.cancel(known.id)
        try:
            drive_one(Driver(service), service, known.id, lambda: None)
        except CampaignBusy as busy:
            console.print(f"{known.id} is being cancelled: {busy}")
        else:
            console.print(f"{known.id} is {service.store.campaign(known.id).state}")


def require_going_on(campaign: Campaign | CampaignView, verb: str) -> None:
    """Raises Refused for a campaign that is over."""
    if campaign.state.final:
        why = campaign.reason.partition("\n")[0]  # without the end of a log
        raise Refused(f"{campaign.id} is {campaign.state} ({why}): there is nothing to {verb}")


def edit(
    campaign: str, place: Place, *, name: str | None, tags: list[str] | None, notes: str | None, limits: Limits
) -> None:
    given: dict[str, Any] = {"name": name, "tags": tags, "notes": notes, "budget": limits.given or None}
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise Refused("edit: say what is to change: --name, --tag, --notes, --trials, --wall-time-s or --device-hours")
    if place.server:
        with commands.remote.open_remote(place, campaign) as remote:
            id, state, was = remote.id, remote.update(**changes).state, remote.view.state
    else:
        with open_campaign(place.home, place.db, campaign) as (service, known):
            was = known.state
            changed = service.changing.change(known.id, changes)
            id, state = changed.id, changed.state
    console.print(f"{id} is changed: {', '.join(changes)}", soft_wrap=True)
    if was.final and state is CampaignState.RUNNING:
        console.print(f"it goes on: `meshtune resume {id}{place.option}` works on it", soft_wrap=True)


def enqueue(campaign: str, plan: str, place: Place) -> None:
    if place.server:
        with commands.remote.open_remote(place, campaign) as remote:
            knobs = KnobSet(remote.record().campaign.spec.knobs)
            trial = remote.enqueue(plan_fields("PLAN", plan, knobs))
            id, number, key = remote.id, trial.number, trial.plan_key
    else:
        with open_campaign(place.home, place.db, campaign) as (service, known):
            space = space_of(known.spec)
            chosen = space.complete(**plan_fields("PLAN", plan, space.knobs))
            require_legal(chosen, space)
            made = service.changing.enqueue(known.id, chosen)
            id, number, key = known.id, made.number, made.plan.key
    console.print(f"trial {number} of {id}: {key}, before the search's next choice", soft_wrap=True)


def show(campaign: str, place: Place, *, trial: int | None) -> None:
    if trial is not None and not campaign:
        raise Refused(f"--trial {trial} needs a campaign: `meshtune show last --trial {trial}`")
    if not campaign:
        console.print(display.campaigns_table(_listed(place)))
    elif trial is not None:
        chosen, found = _trial(place, campaign, trial)
        print_page(trial_page(found, chosen.spec.knobs).renderables)
    elif place.server:
        commands.remote.show(campaign, place)
    else:
        with open_campaign(place.home, place.db, campaign) as (service, chosen):
            waits, nodes = service.waits(chosen.id), service.excluded_nodes(chosen)
            print_campaign(chosen, service.store.trials(chosen.id), waits, nodes)


def _listed(place: Place) -> list[display.Listed]:
    if place.server:
        return commands.remote.listed(place, MAX_LISTED)
    with open_service(place.home, place.db) as service:
        known = service.store.campaigns(limit=MAX_LISTED)
        counts = service.store.verdict_counts([entry.id for entry in known])
        return [
            display.Listed(entry, datetime.fromtimestamp(entry.created_at, UTC), counts.get(entry.id, {}))
            for entry in known
        ]


def _trial(place: Place, campaign: str, number: int) -> tuple[Campaign, Trial]:
    if place.server:
        record = recorded(place, campaign)
        chosen, known = record.campaign, {trial.number: trial for trial in record.trials}
    else:
        with open_campaign(place.home, place.db, campaign) as (service, chosen):
            try:
                return chosen, service.store.trial(chosen.id, number)
            except NotFound:
                known = {trial.number: trial for trial in service.store.trials(chosen.id)}
    if number not in known:
        there = f"its trials are 0 to {max(known)}" if known else "it has none yet"
        raise Refused(f"campaign {chosen.id} has no trial {number}; {there}")
    return chosen, known[number]


def best(campaign: str, place: Place, *, top: int, as_json: bool) -> None:
    record = recorded(place, campaign)
    if as_json:
        print_json(plain(best_view(record.campaign, rank(record.campaign, record.trials), top)))
    else:
        print_best(record.campaign, record.trials, top)


def _print_worked_on(service: Service, campaign: Campaign) -> None:
    ended = work_on(service, campaign)
    print_result(ended, service.store.trials(ended.id))


def print_result(ended: Campaign, trials: Sequence[Trial]) -> None:
    """Print how a campaign ended and what it found. Exits with 1 where nothing was measured."""
    console.print(f"{ended.id} is {ended.state}: {ended.reason}", soft_wrap=True)
    if (checked := check_forecasts(trials).steps) is not None:
        console.print(forecast_sentence(checked, "simulated" if ended.simulated else "measured"), soft_wrap=True)
    if not print_best(ended, trials, 10) and ended.state.final:
        raise typer.Exit(1)


def dry_run_lines(spec: CampaignSpec, space: Space, home: Path, basis: Basis) -> Iterator[str]:
    """The quote, and the first trial's files and job script, as paragraphs.

    The first trial is the baseline's; without one it is taken to be the plan that the physics ranks first, which
    another search may not choose.
    """
    quote = make_quote(spec, space, basis)
    yield from (part.plain for part in quote_parts(quote) if isinstance(part, Text))
    plan = spec.baseline or quote.best[0].plan
    name = job_name(CAMPAIGN, 0, 1)
    job = job_of(spec, plan, name, Home(home.absolute()).job(CAMPAIGN, name))
    chosen = "the baseline" if spec.baseline else "predicted best"
    yield f"\nfirst trial: {plan.key} ({chosen}), in {job.directory}"
    script = FORMATS.get(spec.runner.kind)
    files = script.render(Export(spec=spec, plan=plan, job=job)) if script else job.files
    for file, text in files.items():
        yield f"\n--- {file}\n{text.rstrip()}"
    if script is None:
        yield f"\nthe runner {spec.runner.kind} starts {job.processes} processes: {shlex.join(job.command)}"


def print_best(campaign: Campaign, trials: Sequence[Trial], top: int) -> bool:
    """Print the table, what there is to say about it, and the recommendation; False when nothing was measured."""
    say_simulated(campaign)
    ranking = rank(campaign, trials)
    if ranking:
        print_page([display.best_table(campaign, ranking, top), *display.best_notes(campaign, ranking, top)])
        if campaign.spec.pareto:
            console.print(display.front_table(campaign, ranking))
        if points := scaling_curve(campaign, ranking):
            console.print(scaling_table(points))
    if failures := display.failures_text(trials):
        console.print(failures)
    winners = winners_of(campaign.spec, ranking)
    for line in winner_lines(winners):
        console.print(line, soft_wrap=True)
    if winners.recommended is not None:
        program = measured_with(campaign.spec, winners.recommended.measurement)
        console.print(f"{origin_verb(program)}: {program.words}", soft_wrap=True)
    return bool(ranking)


def say_simulated(campaign: Campaign) -> None:
    if campaign.simulated:
        console.print(SIMULATED, style="yellow")


def print_campaign(campaign: Campaign, trials: Sequence[Trial], waits: str, nodes: Sequence[str]) -> None:
    """Print one campaign, what it does now, what it found, and every trial. waits: what for; nodes: excluded ones."""
    say_simulated(campaign)
    console.print(display.header(campaign))
    why = f" ({campaign.reason})" if campaign.reason not in ("", str(campaign.state)) else ""
    console.print(f"{campaign.state}{why}, worked on for {seconds(campaign.elapsed_s)}")
    if phase := phase_text(campaign, trials):
        console.print(phase, soft_wrap=True)
    if waits:
        console.print(f"waits: {waits}", soft_wrap=True)
    if nodes:
        console.print(f"excluded nodes: {', '.join(nodes)}", soft_wrap=True)
    if learns := lessons_text(campaign.lessons, campaign.spec.search.kind):
        console.print(f"{learns}: {', '.join(map(str, campaign.lessons))}", soft_wrap=True)
    console.print(display.trials_table(trials))
    for line in winner_lines(winners_of(campaign.spec, rank(campaign, trials))):
        console.print(line, soft_wrap=True)
