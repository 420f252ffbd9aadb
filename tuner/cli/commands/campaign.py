"""The commands that drive a campaign and show it: `run`, `resume`, `pause`, `cancel`, `show` and `best`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from meshtune.runners.documents import plain
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.spec import CampaignSpec, job_of
from meshtune.tuner.campaign.stopping import phase_text
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial, TrialState, job_name
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.campaign.waiting import wait_text
from meshtune.tuner.cli.common import Refused, console, errors, print_json, print_page
from meshtune.tuner.cli.opening import open_campaign, open_service
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.analysis import forecast_sentence
from meshtune.tuner.cli.render.knobs import scaling_table
from meshtune.tuner.cli.render.live import LiveScreen
from meshtune.tuner.cli.render.predictions import quote_parts
from meshtune.tuner.cli.render.trial import trial_page
from meshtune.tuner.cli.render.winners import SIMULATED, winner_lines
from meshtune.tuner.cli.spec_file import read_spec_file, stored_basis
from meshtune.tuner.cli.usage.options import home_option
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
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.leases import CampaignBusy
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import changed_document
from meshtune.tuner.store import NotFound

# Stands where a campaign has its id, whose end is drawn when it is created.
CAMPAIGN = "dry-run"
# Why a job waits is a line of the log after so long; till then it is what every job does.
LONG_WAIT_S = 5.0


def run(spec: Path, home: Path, db: str, *, dry_run: bool, cluster: Path | None, project: str) -> None:
    # Before anything is created, so that a mistake leaves nothing behind.
    document, campaign_spec, space = read_spec_file(spec, home, cluster)
    if project:
        replace(campaign_spec, project=project)  # raises InvalidValue
        document = changed_document(document, {"project": project})
    if dry_run:
        print_page(dry_run_lines(campaign_spec, space, home, stored_basis(campaign_spec, home, db)))
        return
    with open_service(home, db, create=True) as service:
        _print_result(service, work_on(service, service.create(document, drives=True)))


def resume(campaign: str, home: Path, db: str) -> None:
    with open_campaign(home, db, campaign) as (service, known):
        _require_going_on(known, "resume")
        try:
            resumed = service.resume(known.id) if known.state.resting else known
            _print_result(service, work_on(service, resumed))
        except CampaignBusy as busy:
            if not known.state.resting:
                raise
            console.print(f"{known.id} goes on: {busy}")


def pause(campaign: str, home: Path, db: str) -> None:
    with open_campaign(home, db, campaign) as (service, known):
        _require_going_on(known, "pause")
        service.pause(known.id)
        console.print(f"{known.id} is paused; `meshtune resume {known.id}{home_option(home)}` goes on", soft_wrap=True)


def cancel(campaign: str, home: Path, db: str) -> None:
    with open_campaign(home, db, campaign) as (service, known):
        _require_going_on(known, "cancel")
        if known.state is not CampaignState.CANCELLING:  # else an earlier cancel was interrupted: finish it
            service.cancel(known.id)
        try:
            drive_one(Driver(service), service, known.id, lambda: None)
        except CampaignBusy as busy:
            console.print(f"{known.id} is being cancelled: {busy}")
        else:
            console.print(f"{known.id} is {service.store.campaign(known.id).state}")


def _require_going_on(campaign: Campaign, verb: str) -> None:
    """Raises Refused for a campaign that is over."""
    if campaign.state.final:
        why = campaign.reason.partition("\n")[0]  # without the end of a log
        raise Refused(f"{campaign.id} is {campaign.state} ({why}): there is nothing to {verb}")


def show(campaign: str, home: Path, db: str, *, trial: int | None) -> None:
    if trial is not None and not campaign:
        raise Refused(f"--trial {trial} needs a campaign: `meshtune show last --trial {trial}`")
    if not campaign:
        with open_service(home, db) as service:
            known = service.store.campaigns(limit=50)
            counts = service.store.verdict_counts([entry.id for entry in known])
            console.print(display.campaigns_table([(entry, counts.get(entry.id, {})) for entry in known]))
        return
    with open_campaign(home, db, campaign) as (service, chosen):
        if trial is None:
            print_campaign(chosen, service)
        else:
            print_page(trial_page(_trial(service, chosen, trial), chosen.spec.knobs).renderables)


def _trial(service: Service, campaign: Campaign, number: int) -> Trial:
    try:
        return service.store.trial(campaign.id, number)
    except NotFound as error:
        newest = max((trial.number for trial in service.store.trials(campaign.id)), default=None)
        there = "it has none yet" if newest is None else f"its trials are 0 to {newest}"
        raise Refused(f"{error}; {there}") from None


def best(campaign: str, home: Path, db: str, *, top: int, as_json: bool) -> None:
    with open_campaign(home, db, campaign) as (service, chosen):
        trials = service.store.trials(chosen.id)
        if as_json:
            print_json(plain(best_view(chosen, rank(chosen, trials), top)))
        else:
            print_best(chosen, service, top)


def work_on(service: Service, campaign: Campaign) -> Campaign:
    """Drive a campaign with live progress on a terminal, else with a line for each trial; return it as it ended."""
    try:
        if console.is_terminal:
            _follow_live(Driver(service), service, campaign.id)
        else:
            follow_logged(Driver(service), service, campaign)
    except KeyboardInterrupt:
        where = home_option(service.home.root)
        console.print("\nInterrupted. Running trials go on by themselves. To collect them and go on, or to end them:")
        for command in ("resume", "cancel"):
            console.print(f"    meshtune {command} {campaign.id}{where}", soft_wrap=True)
        raise typer.Exit(130) from None
    return service.store.campaign(campaign.id)


def _print_result(service: Service, ended: Campaign) -> None:
    console.print(f"{ended.id} is {ended.state}: {ended.reason}", soft_wrap=True)
    if (checked := check_forecasts(service.store.trials(ended.id)).steps) is not None:
        console.print(forecast_sentence(checked), soft_wrap=True)
    if not print_best(ended, service, 10) and ended.state.final:
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


def print_best(campaign: Campaign, service: Service, top: int) -> bool:
    """Print the table, what there is to say about it, and the recommendation; False when nothing was measured."""
    say_simulated(campaign)
    trials = service.store.trials(campaign.id)
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
    for line in winner_lines(campaign, winners):
        console.print(line, soft_wrap=True)
    if winners.recommended is not None:
        program = measured_with(campaign.spec, winners.recommended.measurement)
        console.print(f"{origin_verb(program)}: {program.words}", soft_wrap=True)
    return bool(ranking)


def say_simulated(campaign: Campaign) -> None:
    if campaign.simulated:
        console.print(SIMULATED, style="yellow")


def print_campaign(campaign: Campaign, service: Service) -> None:
    """Print one campaign, what it does now, what it found, and every trial."""
    say_simulated(campaign)
    trials = service.store.trials(campaign.id)
    console.print(display.header(campaign))
    why = f" ({campaign.reason})" if campaign.reason not in ("", str(campaign.state)) else ""
    console.print(f"{campaign.state}{why}, worked on for {seconds(campaign.elapsed_s)}")
    if phase := phase_text(campaign, trials):
        console.print(phase, soft_wrap=True)
    if waits := service.waits(campaign.id):
        console.print(f"waits: {waits}", soft_wrap=True)
    if nodes := service.excluded_nodes(campaign):
        console.print(f"excluded nodes: {', '.join(nodes)}", soft_wrap=True)
    if learns := lessons_text(campaign.lessons, campaign.spec.search.kind):
        console.print(f"{learns}: {', '.join(map(str, campaign.lessons))}", soft_wrap=True)
    console.print(display.trials_table(trials))
    for line in winner_lines(campaign, winners_of(campaign.spec, rank(campaign, trials))):
        console.print(line, soft_wrap=True)


def _follow_live(driver: Driver, service: Service, campaign_id: str) -> None:
    log: list[str] = []
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def watch() -> None:
            campaign = service.current(campaign_id)
            trials = service.store.trials(campaign_id)
            if not log:
                log.extend(_print_first_log(trials))
            trouble = driver.troubles.get(campaign_id, "")
            shown = display.progress(campaign, trials, rank(campaign, trials), trouble)
            words = (phase_text(campaign, trials), lessons_text(campaign.lessons, campaign.spec.search.kind))
            now = Group(shown, *(Text(line) for line in words if line))
            live.update(LiveScreen(campaign, trials, now))

        drive_one(driver, service, campaign_id, watch)


def _print_first_log(trials: Sequence[Trial]) -> list[str]:
    """Print the end of the log of the trial that crashed first; return its lines."""
    lines = display.first_log_lines(trials)
    for line in lines:
        console.print(Text(line), soft_wrap=True, style="dim")
    return lines


def follow_logged(driver: Driver, service: Service, campaign: Campaign) -> None:
    log: list[str] = []
    begun, ended = False, False
    told = {trial.number for trial in service.store.trials(campaign.id) if trial.state.final}
    told_waits: dict[str, str] = {}
    learns, trouble = "", ""

    def watch() -> None:
        nonlocal begun, ended, learns, trouble
        now, trials = service.store.campaign(campaign.id), service.store.trials(campaign.id)
        if not begun:
            console.print(display.header(campaign), soft_wrap=True)
        begun = True
        before, learns = learns, lessons_text(now.lessons, now.spec.search.kind)
        if learns != before:
            console.print(learns, soft_wrap=True)
        for trial in trials:
            if trial.state.final and trial.number not in told:
                told.add(trial.number)
                again = "again, " if trial.origin is Origin.CONFIRMATION else ""
                console.print(f"{again}{display.trial_line(trial)}", soft_wrap=True)
        for attempt in (trial.last for trial in trials if trial.state is TrialState.SUBMITTED):
            if attempt.wait != told_waits.get(attempt.job_name, "") and _waits_long(attempt):
                told_waits[attempt.job_name] = attempt.wait
                errors.print(f"{attempt.job_name}: {wait_text(attempt)}", style="yellow", soft_wrap=True)
        if not log:
            log.extend(_print_first_log(trials))
        if now.search_ended and not ended:
            console.print(phase_text(now, trials), soft_wrap=True)
        ended = bool(now.search_ended)
        before, trouble = trouble, driver.troubles.get(campaign.id, "")
        if trouble and trouble != before:
            errors.print(f"waiting: {trouble}", style="yellow")

    drive_one(driver, service, campaign.id, watch)


def _waits_long(attempt: Attempt) -> bool:
    return attempt.submitted_at is not None and time.time() - attempt.submitted_at >= LONG_WAIT_S
