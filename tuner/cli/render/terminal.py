"""What the command line prints: two consoles, a campaign followed while it is driven, its result, and its trials."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.stopping import phase_text
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.trial import trial_page
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.search.warm_start import lessons_text
from meshtune.tuner.service.loop import Driver, drive_one
from meshtune.tuner.service.service import Service

# Nobody's log or reason is markup, and a file or a pipe has no width to cut tables at.
PIPE_WIDTH = 240


def _console(*, stderr: bool) -> Console:
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else PIPE_WIDTH
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


console = _console(stderr=False)
errors = _console(stderr=True)


def follow(service: Service, campaign: Campaign) -> None:
    """Drive a campaign until it rests: with live progress on a terminal, else with a line for each trial."""
    driver = Driver(service)
    if console.is_terminal:
        _follow_live(driver, service, campaign.id)
    else:
        _follow_logged(driver, service, campaign)


def print_best(campaign: Campaign, service: Service, top: int) -> bool:
    """Print the table, what there is to say about it, and the recommendation; False when nothing was measured."""
    if campaign.simulated:
        console.print("simulated: nothing below was measured on any device", style="yellow")
    trials = service.store.trials(campaign.id)
    ranking = rank(campaign, trials)
    if ranking:
        console.print(display.best_table(campaign, ranking, top))
        for note in display.best_notes(campaign, ranking, top):
            console.print(note, soft_wrap=True)
        if campaign.spec.pareto:
            console.print(display.front_table(campaign, ranking))
    failures = display.failure_counts(trials)
    if failures:
        console.print("failures: " + ", ".join(f"{count} {kind}" for kind, count in failures.items()))
    console.print(display.recommendation_text(recommend(campaign, trials)), soft_wrap=True)
    return bool(ranking)


def print_campaigns(service: Service) -> None:
    """Print the newest campaigns."""
    known = service.store.campaigns(limit=50)
    counts = service.store.verdict_counts([entry.id for entry in known])
    console.print(display.campaigns_table([(entry, counts.get(entry.id, {})) for entry in known]))


def print_campaign(campaign: Campaign, service: Service) -> None:
    """Print one campaign, what it does now, and every trial."""
    trials = service.store.trials(campaign.id)
    console.print(display.header(campaign))
    why = f" ({campaign.reason})" if campaign.reason not in ("", str(campaign.state)) else ""
    console.print(f"{campaign.state}{why}, worked on for {seconds(campaign.elapsed_s)}")
    if phase := phase_text(campaign, trials):
        console.print(phase, soft_wrap=True)
    if waits := service.waits(campaign.id):
        console.print(f"waits: {waits}", soft_wrap=True)
    if nodes := service.excluded_nodes(campaign):
        console.print(f"shunned nodes: {', '.join(nodes)}", soft_wrap=True)
    if campaign.lessons:
        console.print(f"{lessons_text(campaign.lessons)}: {', '.join(map(str, campaign.lessons))}", soft_wrap=True)
    console.print(display.trials_table(trials))


def print_trial(trial: Trial) -> None:
    """Print everything of one trial."""
    print_parts(trial_page(trial).renderables)


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print tables and lines; only tables are cut to the width."""
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def _follow_live(driver: Driver, service: Service, campaign_id: str) -> None:
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def watch() -> None:
            campaign = service.current(campaign_id)
            trials = service.store.trials(campaign_id)
            trouble = driver.troubles.get(campaign_id, "")
            shown = display.progress(campaign, trials, rank(campaign, trials), time.time(), trouble)
            words = (phase_text(campaign, trials), lessons_text(campaign.lessons))
            live.update(Group(shown, *(Text(line) for line in words if line)))

        drive_one(driver, service, campaign_id, watch)


def _follow_logged(driver: Driver, service: Service, campaign: Campaign) -> None:
    begun, ended = False, False
    told: set[int] = {trial.number for trial in service.store.trials(campaign.id) if trial.state.final}
    learns_told, trouble_told = "", ""

    def watch() -> None:
        nonlocal begun, ended, learns_told, trouble_told
        now, trials = service.store.campaign(campaign.id), service.store.trials(campaign.id)
        if not begun:
            console.print(display.header(campaign), soft_wrap=True)
        begun = True
        learns = lessons_text(now.lessons)
        if learns != learns_told:
            console.print(learns, soft_wrap=True)
        learns_told = learns
        for trial in trials:
            if trial.state.final and trial.number not in told:
                told.add(trial.number)
                again = "again, " if trial.origin is Origin.CONFIRMATION else ""
                console.print(f"{again}{display.trial_line(trial)}", soft_wrap=True)
        if now.search_ended and not ended:
            console.print(phase_text(now, trials), soft_wrap=True)
        ended = bool(now.search_ended)
        trouble = driver.troubles.get(campaign.id, "")
        if trouble and trouble != trouble_told:
            errors.print(f"waiting: {trouble}", style="yellow")
        trouble_told = trouble

    drive_one(driver, service, campaign.id, watch)
