"""A campaign followed until it rests: live on a terminal's screen, or with a line for each trial in a log. The same for
one that this process drives and for one of a service."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.eligibility import first_mismatch
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.campaign.stopping import phase_text
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState
from meshtune.tuner.campaign.units import number
from meshtune.tuner.campaign.waiting import wait_text
from meshtune.tuner.cli.common import console, errors
from meshtune.tuner.cli.options import home_option
from meshtune.tuner.cli.render import display
from meshtune.tuner.results.ranking import rank, trial_gain
from meshtune.tuner.search.warm_start import lessons_text
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service

# Why a job waits is a line of the log after so long; till then it is what every job does.
LONG_WAIT_S = 5.0


# A campaign at one moment, its trials, and what it waits for.
Looking = Callable[[], tuple[Campaign, Sequence[Trial], str]]
# Calls what it is given after whatever happens to a campaign, until the campaign rests.
Drive = Callable[[Callable[[], None]], None]


def work_on(service: Service, campaign: Campaign, *, quiet: bool = False) -> Campaign:
    """Drive a campaign, followed; return it as it ended. quiet: nothing is said meanwhile, nor of an interruption."""
    if quiet:
        drive_one(Driver(service), service, campaign.id, lambda: None)
        return service.store.campaign(campaign.id)
    try:
        follow(*driving(Driver(service), service, campaign.id), ended_trials(service.store.trials(campaign.id)))
    except KeyboardInterrupt:
        where = home_option(service.home.root)
        console.print("\nInterrupted. Running trials go on by themselves. To collect them and go on, or to end them:")
        for command in ("resume", "cancel"):
            console.print(f"    meshtune {command} {campaign.id}{where}", soft_wrap=True)
        raise typer.Exit(130) from None
    return service.store.campaign(campaign.id)


def driving(driver: Driver, service: Service, campaign_id: str) -> tuple[Looking, Drive]:
    """How to look at a campaign that this process drives, and how to drive it."""

    def look() -> tuple[Campaign, Sequence[Trial], str]:
        trouble = str(driver.troubles.get(campaign_id, ""))
        return service.current(campaign_id), service.store.trials(campaign_id), trouble

    return look, lambda watch: drive_one(driver, service, campaign_id, watch)


def ended_trials(trials: Sequence[Trial]) -> set[int]:
    return {trial.number for trial in trials if trial.state.final}


def follow(look: Looking, drive: Drive, ended_before: Collection[int]) -> None:
    """Until the campaign rests. ended_before: trials of which a log says nothing any more."""
    if console.is_terminal:
        _follow_live(look, drive)
    else:
        follow_logged(look, drive, ended_before)


def _follow_live(look: Looking, drive: Drive) -> None:
    log: list[str] = []
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def watch() -> None:
            campaign, trials, trouble = look()
            if not log:
                log.extend(_print_first_log(trials))
            shown = display.progress(campaign, trials, rank(campaign, trials), trouble)
            words = (phase_text(campaign, trials), lessons_text(campaign.lessons, campaign.spec.search.kind))
            below = Group(shown, *(Text(line) for line in words if line))
            live.update(LiveScreen(campaign, trials, below))

        drive(watch)


def follow_logged(look: Looking, drive: Drive, ended_before: Collection[int] = ()) -> None:
    log: list[str] = []
    begun, ended, warned = False, False, ""
    said = set(ended_before)
    told_waits: dict[str, str] = {}
    learns, trouble = "", ""

    def watch() -> None:
        nonlocal begun, ended, learns, trouble, warned
        now, trials, waits = look()
        if not begun:
            console.print(display.header(now), soft_wrap=True)
            # `first_mismatch` needs its modules. Ctrl-C within an import is no KeyboardInterrupt any more: a class that
            # is half made raises RuntimeError, and CPython ends by the signal whoever catches what `exec` raised.
            workload_of(now.spec)
        begun = True
        before, learns = learns, lessons_text(now.lessons, now.spec.search.kind)
        if learns != before:
            console.print(learns, soft_wrap=True)
        for trial in trials:
            if trial.state.final and trial.number not in said:
                said.add(trial.number)
                again = "second run, " if trial.origin is Origin.CONFIRMATION else ""
                console.print(f"{again}{display.trial_line(trial, now.spec.model.worded('tokens/s'))}", soft_wrap=True)
                if not warned and (warned := first_mismatch(now.spec, trials)):
                    errors.print(f"! {warned}", style="red", soft_wrap=True)
        for attempt in (trial.last for trial in trials if trial.state is TrialState.SUBMITTED):
            waited_s = 0.0 if attempt.submitted_at is None else time.time() - attempt.submitted_at
            if attempt.wait != told_waits.get(attempt.job_name, "") and waited_s >= LONG_WAIT_S:
                told_waits[attempt.job_name] = attempt.wait
                errors.print(f"{attempt.job_name}: {wait_text(attempt)}", style="yellow", soft_wrap=True)
        if not log:
            log.extend(_print_first_log(trials))
        if now.search_ended and not ended:
            console.print(phase_text(now, trials), soft_wrap=True)
        ended = bool(now.search_ended)
        before, trouble = trouble, waits
        if trouble and trouble != before:
            errors.print(f"waiting: {trouble}", style="yellow")

    drive(watch)


def _print_first_log(trials: Sequence[Trial]) -> list[str]:
    """Print the end of the log of the trial that crashed first; return its lines."""
    lines = display.first_log_lines(trials)
    for line in lines:
        console.print(Text(line), soft_wrap=True, style="dim")
    return lines


@dataclass(frozen=True, slots=True)
class LiveScreen:
    """As many finished trials as a terminal has lines for, the newest last, above `now`: what runs."""

    campaign: Campaign
    trials: Sequence[Trial]
    now: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        finished = [trial for trial in self.trials if trial.state.final]
        finished.sort(key=lambda trial: trial.last.finished_at or 0.0)
        # One line stays free for the cursor.
        room = options.size.height - 1 - _height(self.now, console, options)
        shown = min(len(finished), room)
        while shown > 0:
            table = finished_table(self.campaign, finished, shown)
            excess = _height(table, console, options) - room
            if excess <= 0:
                yield table
                break
            shown -= max(1, excess // 2)  # a long plan takes two lines
        yield self.now


def finished_table(campaign: Campaign, finished: Sequence[Trial], newest: int) -> RenderableType:
    """The newest so many of the finished trials: how each ended, the objective of this one run, and its speed against
    the baseline's run of the same round. Without intervals, which the table of the best plans has."""
    yardstick = yardstick_of(campaign.spec)
    plan = next((each.plan for each in finished if each.origin is Origin.BASELINE), None)
    baseline = {each.round: each for each in finished if each.plan == plan}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("trial", "plan", "ended", yardstick.unit, "to baseline"):
        right = name in ("trial", yardstick.unit, "to baseline")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "plan", overflow="fold")
    for trial in finished[-newest:]:
        measured = trial.measurement
        gain = trial_gain(campaign.spec.objective, trial, baseline)
        table.add_row(
            str(trial.number),
            f"{trial.plan.key}{', second run' if trial.origin is Origin.CONFIRMATION else ''}",
            display.state_text(trial),
            "" if measured is None else number(yardstick.of(measured, measured.step_time_s)),
            "baseline" if trial.plan == plan else "" if gain is None else f"{100 * gain:+.1f} %",
        )
    earlier = len(finished) - newest
    return Group(Text(f"{earlier} earlier", style="dim"), table) if earlier else table


def _height(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    return len(console.render_lines(part, options.update(height=None), pad=False))
