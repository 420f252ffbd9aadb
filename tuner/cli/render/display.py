"""How campaigns look on a terminal: Rich tables and lines from values. Prints nothing and asks nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from meshtune.runners.outcome import FAILED, Measurement, Outcome, Verdict
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.physics.training import MODEL_UNKNOWN
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.decide import device_seconds
from meshtune.tuner.campaign.eligibility import Reason
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.second_runs import planned_runs
from meshtune.tuner.campaign.stopping import confirmations, hopeless_reason
from meshtune.tuner.campaign.trial import Origin, Trial, time_by_part
from meshtune.tuner.campaign.units import gibibytes, number, seconds
from meshtune.tuner.campaign.waiting import wait_text
from meshtune.tuner.cli.render.knobs import alike_note, settings
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.cli.render.winners import fastest_lines
from meshtune.tuner.results.ranking import NO_LOSSES, Confirmation, Ranked
from meshtune.tuner.results.recommendation import comparable_text, front_of
from meshtune.tuner.results.winners import winners_of

if TYPE_CHECKING:  # which loads the database
    from meshtune.tuner.service.views.campaigns import CampaignView

# A part that rounds to nothing is left out.
LEAST_SHARE = 0.005
# So much of the first failed trial's log is told as it comes.
LOG_LINES = 5
_COLOURS: Mapping[str, str] = {
    Verdict.OK: "green",
    Verdict.OOM: "magenta",
    Verdict.CRASHED: "red",
    Verdict.TIMED_OUT: "yellow",
}


def best_table(campaign: Campaign, ranking: Sequence[Ranked], top: int) -> RenderableType:
    """The ranking: plans with their throughput, its interval, memory of tensors and the gain over the baseline.

    A plan with second runs is shown with both trials, by its second runs, and by its first run beside.
    Marked: `!` what is never recommended (`best_notes` says why), `*` the front, where the spec asks for one.
    """
    spec = campaign.spec
    front = front_of(ranking) if spec.pareto else []
    shown = ranking[:top]
    again = any(entry.confirmation is not None for entry in shown)
    first = ["first run"] if again else []
    numbers = (yardstick_of(spec).unit, "90 % interval", *first, "step", "memory/rank", "gain over baseline")
    spare = ("memory/rank", "first run", "step", "90 % interval")
    table = new_table(f"Best plans of {campaign.id}", "#", "trial", "plan", *numbers, right=numbers[:-1], spare=spare)
    for entry, plan in zip(shown, settings([entry.trial.plan for entry in shown]), strict=True):
        table.add_row(
            str(entry.rank),
            f"{_trials(entry)}{'' if entry.usable else ' !'}{' *' if entry in front else ''}",
            plan,
            number(entry.objective.value),
            f"{number(entry.objective.low)} - {number(entry.objective.high)}",
            *([number(entry.first_run.value)] if again else []),
            seconds(entry.step_time_s),
            "-" if entry.peak_memory_bytes is None else gibibytes(entry.peak_memory_bytes),
            _gain(entry),
            style="bold" if entry.usable and entry.rank == 1 else "" if entry.usable else "red",
        )
    return table


def _gain(entry: Ranked) -> str:
    """Of first runs without its interval, which says nothing of how far runs lie apart."""
    if entry.gain is None or entry.trial.origin is Origin.BASELINE:
        return "-" if entry.gain is None else "baseline"
    return entry.gain_text if entry.gain_rounds else f"{100 * entry.gain.value:+.1f} %, first run"


def front_table(campaign: Campaign, ranking: Sequence[Ranked]) -> RenderableType:
    """The Pareto front, the fastest first: what each plan leaves of the device's memory on its fullest rank."""
    numbers = (yardstick_of(campaign.spec).unit, "slower", "headroom", "of the device")
    table = new_table("Front of speed and memory left over", "trial", "plan", right=numbers, spare=numbers[:0:-1])
    front = front_of(ranking)
    for entry, plan in zip(front, settings([entry.trial.plan for entry in front]), strict=True):
        headroom_bytes = entry.headroom_bytes or 0.0
        table.add_row(
            _trials(entry),
            plan,
            number(entry.objective.value),
            f"{0 - 100 * entry.over(front[0]).value:.1f} %",
            gibibytes(round(headroom_bytes)),
            f"{headroom_bytes / campaign.spec.cluster.device.memory_bytes:.0%}",
        )
    return table


def best_notes(campaign: Campaign, ranking: Sequence[Ranked], top: int) -> list[Text]:
    """Below the table: where the time of the best and of the baseline goes, who is slow, how well first runs were
    reproduced, what trains otherwise, and what was measured on other hardware."""
    notes = [Text(said)] if (said := alike_note([entry.trial.plan for entry in ranking[:top]])) else []
    for entry in ranking:
        baseline = entry.trial.origin is Origin.BASELINE
        if entry.rank > 1 and not baseline:
            continue
        name = " and ".join([*(["the best"] if entry.rank == 1 else []), *(["the baseline"] if baseline else [])])
        notes += time_notes(f"{name} (trial {entry.measured_by.number})", entry.measurement)
    if ranking and ranking[0].ground.variance is not None:
        notes.append(Text(str(ranking[0].ground.variance)))
    for entry in ranking:
        if entry.confirmation is not None:
            notes.append(_confirmation_note(entry, entry.confirmation))
    for entry in ranking[:top]:
        if entry.trains_otherwise:
            sentence = f"! trial {entry.trial.number} {entry.training}; never recommended"
            notes.append(Text(sentence, style="red"))
        if entry.hides_losses:
            notes.append(Text(f"! trial {entry.trial.number} {NO_LOSSES}", style="yellow"))
        if entry.changed_numerics:
            never = "; never recommended without `accept: numerics`" if entry.ineligible is Reason.NUMERICS else ""
            sentence = f"trial {entry.trial.number} changes the numerics: {', '.join(entry.changed_numerics)}{never}"
            notes.append(Text(f"! {sentence}" if never else sentence, style="red" if never else ""))
        if entry.other_hardware:
            notes.append(Text(f"! trial {entry.trial.number} {entry.other_hardware}; never recommended", style="red"))
    return notes


def _confirmation_note(entry: Ranked, confirmation: Confirmation) -> Text:
    again, first = confirmation.trial, f"{number(entry.first_run.value)} {entry.unit}"
    said = f"trial {entry.trial.number}, second run (trial {again.number})"
    if confirmation.runs > 1:
        said = f"trial {entry.trial.number}, {confirmation.runs} second runs"
    if confirmation.change is not None:
        value = f"{number(entry.objective.value)} after {first}"
        return Text(f"{said}: {value} ({100 * confirmation.change:+.1f} % in speed)")
    if entry.failed_again:
        return Text(f"! {said}: {again.verdict} after {first}; never recommended", style="red")
    return Text(f"{said}: {again.verdict}, which says nothing of the plan", style="yellow")


def shares_text(shares: Iterable[tuple[str, float]], unit: str = "") -> str:
    """Parts with their share, the largest first."""
    ordered = sorted(shares, key=lambda item: -item[1])
    return ", ".join(f"{part} {100 * share:.0f}{unit}" for part, share in ordered if share >= LEAST_SHARE)


def time_notes(name: str, measured: Measurement) -> list[Text]:
    """One line of shares, the largest first, and a sentence if one rank is slow; nothing without a profile."""
    if measured.profile is None:
        return []
    shares = ((part.part, part.share) for part in time_by_part(measured.profile))
    notes = [Text(f"time of {name}: {shares_text(shares, ' %')}")]
    if measured.profile.serialised:
        exposed_s = measured.profile.exposed_s(measured.step_time_s)
        share = 100 * sum(exposed_s) / len(exposed_s) / measured.step_time_s
        words = f"of steps in which nothing overlaps; in timed ones own work left at least {share:.0f} % unfilled"
        notes.append(Text(f"  {words}"))
    if measured.profile.straggler is not None:
        notes.append(Text(f"{name}: {measured.profile.straggler}", style="yellow"))
    return notes


def trials_table(trials: Sequence[Trial], rate: str = "tokens/s") -> Table:
    """Every trial with how it ended, and its speed in `rate`. Knobs that are alike in all of them stand below."""
    plans = [trial.plan for trial in trials]
    columns = ("trial", "plan", "chosen by", "state", "step", rate, "attempts", "reason")
    table = new_table("Trials", *columns, right=columns[4:7], spare=("attempts", "chosen by", rate, "step", "reason"))
    table.caption = alike_note(plans) or None
    for trial, plan in zip(trials, settings(plans), strict=True):
        measured = trial.measurement
        table.add_row(
            str(trial.number),
            plan,
            origin_text(trial),
            state_text(trial),
            "-" if measured is None else seconds(measured.step_time_s),
            "-" if measured is None else number(measured.tokens_per_s),
            str(len(trial.attempts)),
            _why(trial),
        )
    return table


@dataclass(frozen=True, slots=True)
class CampaignRow:
    """A campaign in a list. counts: of its trials, by verdict or state."""

    campaign: Campaign | CampaignView
    created_at: datetime
    counts: Mapping[str, int]


def campaigns_table(rows: Sequence[CampaignRow]) -> Table:
    columns = ("campaign", "state", "created", "trials", "legal plans", "reason")
    table = new_table("Campaigns", *columns, spare=("legal plans", "created", "reason", "trials"))
    for row in rows:
        campaign = row.campaign
        shares = ", ".join(f"{count} {name}" for name, count in sorted(row.counts.items()))
        table.add_row(
            campaign.id,
            str(campaign.state),
            row.created_at.strftime("%Y-%m-%d %H:%M UTC"),
            shares or "none",
            str(campaign.legal),
            campaign.reason.partition("\n")[0],
        )
    return table


def space_table(space: Space) -> Table:
    """Which rules reject how many combinations; one may be rejected by several."""
    table = new_table("", "rule", right=["rejects"])
    for name, count in sorted(space.counts.rejected.items(), key=lambda item: -item[1]):
        table.add_row(name, str(count))
    return table


def space_text(space: Space) -> str:
    """How many combinations there are, how many are legal, and of what they are made; then the knobs, which multiply
    with the layouts."""
    lines = [f"  {name}: {', '.join(map(str, values))}" for name, values in space.dimensions.items()]
    if not space.knobs.searched:
        return "\n".join([f"{space.counts.legal} legal plans of {space.counts.combinations} combinations of", *lines])
    knobs = [
        f"  {knob.name}: {', '.join(map(word, knob.values))}{f' (when {knob.when})' if knob.when else ''}"
        for knob in space.knobs.searched
    ]
    layouts = (
        f"{space.plans} legal plans: {space.counts.legal} legal layouts of {space.counts.combinations} combinations"
    )
    return "\n".join([f"{layouts} of", *lines, "times the knobs, where they are active", *knobs])


def header(campaign: Campaign) -> str:
    spec = campaign.spec
    return (
        f"{campaign.id}: {spec.model.name} on {spec.cluster.devices} x {spec.cluster.device.name}, "
        f"{campaign.legal} legal plans of {campaign.combinations} combinations, search {spec.search.kind}, "
        f"runner {spec.runner.kind}; {limits_text(campaign)}"
        + ("" if spec.model.known else f"; the model {MODEL_UNKNOWN}")
    )


def limits_text(campaign: Campaign) -> str:
    spec, budget = campaign.spec, campaign.spec.budget
    hours = "" if budget.device_hours is None else f", the campaign {number(budget.device_hours)} device-hours"
    hours += "" if budget.wall_time_s is None else f", {seconds(budget.wall_time_s)} of work"
    runs = runs_text(*planned_runs(spec, campaign.legal))
    return f"{runs}; a trial may take {seconds(spec.trial.limit_s)}{hours}"


def runs_text(first: int, second: Sequence[int]) -> str:
    """second: the fewest second runs and the most, a likely number between them."""
    least, *likely, most = second
    trials = "1 trial" if first == 1 else f"{first} trials"
    if not most:
        return trials
    if least == most:
        return f"{trials} and {most} second runs"
    return f"{trials} and {least} to {most} second runs{''.join(f', likely {number},' for number in likely)}"


def progress(campaign: Campaign, trials: Sequence[Trial], ranking: Sequence[Ranked], trouble: str) -> RenderableType:
    """The live view: done, the fastest so far, running now, failures by kind, time left."""
    done = sum(trial.state.final for trial in trials)
    first, (least, most) = planned_runs(campaign.spec, campaign.legal)
    again = sum(trial.state.final for trial in confirmations(trials))
    more = f", {again} of {least} to {max(most, again)} second runs" if most else ""
    total = max(first + least, len(trials))
    bar = Table.grid(padding=(0, 1))
    for column in range(5):
        bar.add_column(no_wrap=column != 1)  # on a narrow terminal the bar alone gets narrower
    bar.add_row(
        f"{done - again}/{first} trials{more}",
        ProgressBar(total=total, completed=done, width=40),
        f"worked {seconds(campaign.elapsed_s)}",
        f"left about {left(campaign, trials)}",
        f"{device_seconds(trials) / 3600:.3f} device-hours",
    )
    lines: list[RenderableType] = [Text(header(campaign), style="bold"), bar]
    for line in fastest_lines(winners_of(campaign.spec, ranking)):
        line.style = "green"
        lines.append(line)
    running = [trial for trial in trials if not trial.state.final]
    for trial in running:
        wait = wait_text(trial.last)
        lines.append(Text(f"{trial.state}: trial {trial.number}, {trial.plan.key}{f', {wait}' if wait else ''}"))
    if failures := failures_text(trials):
        lines.append(Text(failures, style="red"))
    if few := comparable_text(ranking):
        lines.append(Text(few, style="yellow"))
    if trouble:
        lines.append(Text(f"waiting: {trouble}", style="yellow"))
    return Group(*lines)


def first_log_lines(trials: Sequence[Trial]) -> list[str]:
    """The end of the log of the trial that crashed first, of those that left one; none where the campaign ends by it,
    which tells it."""
    crashed = [trial for trial in trials if trial.verdict is Verdict.CRASHED]
    telling = [trial for trial in crashed if trial.outcome is not None and trial.outcome.log_tail.strip()]
    if not telling or hopeless_reason(trials):
        return []
    first = min(telling, key=lambda trial: (trial.last.finished_at or 0.0, trial.number))
    assert first.outcome is not None  # it has ended
    lines = [line for line in first.outcome.log_tail.splitlines() if line.strip()][-LOG_LINES:]
    return [f"the log of trial {first.number} ends (`meshtune show` has more):", *(f"    {line}" for line in lines)]


def trial_line(trial: Trial, rate: str = "tokens/s") -> str:
    """One finished trial, for a log."""
    verdict = str(trial.verdict)
    measured = trial.measurement
    if measured is None:
        ended = _why(trial) if trial.outcome is not None and trial.outcome.partial else f"{verdict}: {_why(trial)}"
        return f"trial {trial.number}: {trial.plan.key}: {ended}"
    known = trial.expectation
    expected = "" if known is None else f" (expected {seconds(known.step_time_s)})"
    return (
        f"trial {trial.number}: {trial.plan.key}: {verdict}, step {seconds(measured.step_time_s)}{expected}, "
        f"{number(measured.tokens_per_s)} {rate}"
    )


def failures_text(trials: Sequence[Trial]) -> str:
    """Failed trials by verdict; empty where none failed."""
    verdicts = [trial.verdict for trial in trials if trial.state.final]
    counts = Counter(str(verdict) for verdict in verdicts if verdict is not Verdict.OK)
    return f"failures: {', '.join(f'{count} {kind}' for kind, count in counts.items())}" if counts else ""


def left(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """The time that remains at the pace so far, or until the wall-time budget ends, whichever is sooner."""
    budget = campaign.spec.budget
    estimates: list[float] = []
    spans = [
        trial.last.finished_at - trial.attempts[0].planned_at for trial in trials if trial.last.finished_at is not None
    ]
    if spans:
        first, (least, _) = planned_runs(campaign.spec, campaign.legal)
        remaining = first + least - len(spans)
        estimates.append(max(0, remaining) * sum(spans) / len(spans) / campaign.spec.parallel)
    if budget.wall_time_s is not None:
        estimates.append(max(0.0, budget.wall_time_s - campaign.elapsed_s))
    return seconds(max(1, round(min(estimates)))) if estimates else "?"


def origin_text(trial: Trial) -> str:
    return "second run" if trial.origin is Origin.CONFIRMATION else str(trial.origin)


def state_text(trial: Trial) -> Text:
    name = str(trial.state) if trial.outcome is None else ended_text(trial.outcome)
    return Text(name, style=_COLOURS.get(str(trial.verdict), ""))


def ended_text(outcome: Outcome) -> str:
    """The verdict, and the cause where it says more."""
    verdict, cause = outcome.verdict, outcome.failure
    return str(verdict) if cause is None or cause is FAILED[verdict] else f"{verdict} ({cause})"


def _trials(entry: Ranked) -> str:
    return f"{entry.trial.number}" + (f"+{entry.confirmation.trial.number}" if entry.confirmation is not None else "")


def pruned_text(partial: Measurement) -> str:
    """How far a pruned job came; not a measurement of its plan."""
    return f"pruned after {len(partial.step_times_s)} steps at {seconds(partial.step_time_s)}"


def _why(trial: Trial) -> str:
    """Why it waits, or how it failed; else how the attempt before did, which is why there was another."""
    if trial.outcome is None and (wait := wait_text(trial.last)):
        return wait
    if trial.outcome is not None and trial.outcome.partial:
        return pruned_text(trial.outcome.partial)
    reasons = [one.outcome.reason.strip() for one in trial.attempts if one.outcome is not None]
    return next((reason.splitlines()[0] for reason in reversed(reasons) if reason), "")
