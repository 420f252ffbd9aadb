"""What is told of a campaign: what a dry run would do, how it ended, and everything that it found."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.text import Text

from meshtune.runners.base import JobSpec, RunnerError, RunnerUnavailable
from meshtune.runners.outcome import Verdict
from meshtune.runners.registry import load, schedulers
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.spec import CampaignSpec, job_of, space_of
from meshtune.tuner.campaign.stopping import phase_text
from meshtune.tuner.campaign.trial import Trial, job_name
from meshtune.tuner.campaign.units import measured_word, seconds
from meshtune.tuner.cli.common import WrongCall, console, errors, print_page
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.knobs import scaling_table
from meshtune.tuner.cli.render.predictions import quote_parts
from meshtune.tuner.cli.render.winners import SIMULATED, winner_lines
from meshtune.tuner.prediction.memory_needs import memory_needs
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.prediction.quote import Quote
from meshtune.tuner.results.analysis.forecast_check import check_forecasts
from meshtune.tuner.results.export import FORMATS, Export
from meshtune.tuner.results.handover import measured_with, origin_verb
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.record import Record
from meshtune.tuner.results.sizes import scaling_curve
from meshtune.tuner.results.winners import winners_of
from meshtune.tuner.search.warm_start import lessons_text
from meshtune.tuner.specs.preflight import preflight

# Stands where a campaign has its id, whose end is drawn when it is created.
CAMPAIGN = "dry-run"
PAUSED_CODE = 3


def print_result(record: Record) -> None:
    """Print how a campaign ended and what it found. Exits with 1 where nothing was measured, with PAUSED_CODE where it
    is to be resumed."""
    ended, trials = record.campaign, record.trials
    console.print(f"{ended.id} is {ended.state}: {ended.reason}", soft_wrap=True)
    if (checked := check_forecasts(trials).steps) is not None:
        console.print(checked.words(measured_word(ended.simulated)), soft_wrap=True)
    if not print_best(ended, trials, 10) and ended.state.final:
        if any(trial.verdict is Verdict.OOM for trial in trials):
            print_page(memory_needs(space_of(ended.spec), training_of(ended.spec)))
        raise typer.Exit(1)
    if ended.state is CampaignState.PAUSED:
        raise typer.Exit(PAUSED_CODE)


def first_plan(spec: CampaignSpec, quote: Quote) -> tuple[Plan, str]:
    """The plan that stands for a campaign before it has run, and which it is: the baseline; without one what the
    physics ranks first, which another search may not choose."""
    if spec.baseline is not None:
        return spec.baseline, "the baseline"
    return (quote.best[0].plan, "predicted best") if quote.best else (space_of(spec)[0], "first of the legal ones")


def dry_run_lines(spec: CampaignSpec, quote: Quote, home: Path) -> Iterator[str]:
    """The quote, and the first trial's files and job script, as paragraphs."""
    spec = quote.limits.laid_over(spec)
    yield from (part.plain for part in quote_parts(quote) if isinstance(part, Text))
    plan, chosen = first_plan(spec, quote)
    name = job_name(CAMPAIGN, 0, 1)
    job = job_of(spec, plan, name, Home(home.absolute()).job(CAMPAIGN, name))
    yield f"\nfirst trial: {plan.key} ({chosen}), in {job.directory}"
    script = FORMATS.get(spec.runner.kind)
    files = script.render(Export(spec=spec, plan=plan, job=job)) if script else job.files
    for file, text in files.items():
        yield f"\n--- {file}\n{text.rstrip()}"
    if script is None:
        yield f"\nthe runner {spec.runner.kind} starts {job.processes} processes: {shlex.join(job.command)}"
    else:
        yield f"\n{_answer(spec, job)}"


def print_missing(spec: CampaignSpec, home: Path | None) -> None:
    """Print what jobs may miss. home: None where they run elsewhere."""
    for problem, _ in preflight(spec.workload, spec.runner, home and home.absolute()):
        errors.print(f"note: {problem}", style="dim", markup=False, soft_wrap=True)


def _answer(spec: CampaignSpec, job: JobSpec) -> str:
    """What the scheduler says to a job that it is not given."""
    scheduler, options = schedulers()[spec.runner.kind], spec.runner.options
    if not scheduler.asked:
        return f"{spec.runner.kind} was not asked: no test of a job that is not sent is known of {scheduler.send}"
    try:
        return f"{spec.runner.kind} was asked: {load(scheduler.asked)(job, spec.cluster, options)}"
    except RunnerError as error:
        said = "does not answer" if isinstance(error, RunnerUnavailable) else "refuses it"
        return f"{spec.runner.kind} {said}: {error}"


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
    print_page(winner_lines(winners))
    if winners.recommended is not None:
        program = measured_with(campaign.spec, winners.recommended.measurement)
        console.print(f"{origin_verb(program)}: {program.words}", soft_wrap=True)
    return bool(ranking)


def say_simulated(campaign: Campaign) -> None:
    if campaign.simulated:
        console.print(SIMULATED, style="yellow")


def trial_of(record: Record, number: str) -> Trial:
    """Raises WrongCall."""
    known = {str(one.number): one for one in record.trials}
    if number not in known:
        there = f"its trials are 0 to {record.trials[-1].number}" if known else "it has none yet"
        raise WrongCall(f"campaign {record.campaign.id} has no trial {number}; {there}")
    return known[number]


def print_campaign(record: Record, waits: str, nodes: Sequence[str]) -> None:
    """Print one campaign, what it does now, what it found, and every trial. waits: what for; nodes: excluded ones."""
    campaign, trials = record.campaign, record.trials
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
    console.print(display.trials_table(trials, campaign.spec.model.worded("tokens/s")))
    print_page(winner_lines(winners_of(campaign.spec, rank(campaign, trials))))
