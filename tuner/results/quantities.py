"""The numbers of a trial, each said once: its name, unit, words, and how it is had from a measurement. The list of
trials, their table, trials side by side, the keys of sorting, and columns and axes of the page are made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Measurement, Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.listing import DEVICE_SECONDS, NUMBER
from meshtune.tuner.campaign.objective import Yardstick, yardstick_of
from meshtune.tuner.campaign.trial import Attempt, Expectation, Origin, Trial, TrialState
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.ranking import Ranked, baseline_of, rank, trial_gain
from meshtune.tuner.results.views import view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number that a trial's own run measured. of: None where the job did not tell it. kind: of a cell of the table.
    unit: s, B, share, or empty for a plain number. words: on the page, which has it as an axis and a column; empty
    where it has not. sortable: the database orders trials by it."""

    name: str
    of: Callable[[Yardstick, Measurement], float | None]
    kind: type = float
    unit: str = ""
    words: str = ""
    sortable: bool = False


QUANTITIES: Sequence[Quantity] = (
    Quantity(name="objective", of=lambda by, run: by.of(run, run.step_time_s)),
    Quantity(name="step_time_s", of=lambda _, run: run.step_time_s, unit="s", words="step time", sortable=True),
    Quantity(name="step_time_low_s", of=lambda _, run: run.step_time_interval_s.low, unit="s"),
    Quantity(name="step_time_high_s", of=lambda _, run: run.step_time_interval_s.high, unit="s"),
    Quantity(name="tokens_per_s", of=lambda _, run: run.tokens_per_s),
    Quantity(
        name="tokens_per_s_per_device",
        of=lambda _, run: run.tokens_per_s_per_device,
        words="tokens/s per device",
        sortable=True,
    ),
    Quantity(name="tflops_per_device", of=lambda by, run: by.tflops_per_device(run, run.step_time_s), sortable=True),
    Quantity(name="mfu", of=lambda by, run: by.share_of_peak(run, run.step_time_s), unit="share", sortable=True),
    Quantity(
        name="peak_memory_bytes",
        of=lambda _, run: run.max_memory_bytes,
        kind=int,
        unit="B",
        words="peak memory",
        sortable=True,
    ),
    Quantity(name="peak_held_bytes", of=lambda _, run: run.summary.max_held_bytes, kind=int, unit="B"),
    Quantity(name="headroom_bytes", of=lambda by, run: by.headroom_bytes([run]), kind=int, unit="B", words="headroom"),
)
SORT_KEYS = (NUMBER, *(one.name for one in QUANTITIES if one.sortable), DEVICE_SECONDS)
TIMES = ("planned_at", "submitted_at", "started_at", "finished_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingView:
    """A plan over all its runs, as the recommendation counts them. trial: its first run's. runs: the second runs that
    were measured; failed_again: one of them failed. objective, step_time_s: by second runs where there are any.
    gain_over_baseline, gain_rounds: as of RankedView."""

    trial: int
    runs: int
    failed_again: bool
    objective: Estimate
    step_time_s: float
    gain_over_baseline: Estimate | None
    gain_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBrief:
    """A trial by its last attempt. failure: why it failed; null for one that did not. objective: the campaign's, by
    this run alone. round: of second runs, from 1 on; 0 for first ones. gain_over_baseline: a ratio of speeds minus 1,
    of this run over the baseline's of the same round. setting: of its plan; null where that has no second run.
    peak_memory_bytes: of tensors, on the most loaded rank. headroom_bytes: what the fullest rank left of its device.
    device_seconds: of jobs that have ended, over all attempts; attempts: how many there were. wait: why it waits in a
    queue, or is refused, as the attempt says. All measured numbers are null where nothing was measured. The whole trial
    has the rest."""

    number: int
    origin: Origin
    state: TrialState
    verdict: Verdict | None
    failure: Cause | None
    reason: str
    plan: Plan
    plan_key: str
    step_time_s: float | None
    step_time_low_s: float | None
    step_time_high_s: float | None
    objective: Estimate | None
    round: int
    gain_over_baseline: float | None
    setting: SettingView | None
    tokens_per_s_per_device: float | None
    peak_memory_bytes: int | None
    headroom_bytes: float | None
    expectation: Expectation | None
    device_seconds: float
    attempts: int
    nodes: tuple[str, ...]
    wait: str
    planned_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


def shown_in(view: type, but: Iterable[str] = ()) -> Sequence[Quantity]:
    """Those that a view has fields for."""
    names = {each.name for each in fields(view)}.difference(but)
    return [one for one in QUANTITIES if one.name in names]


def numbers_of(yardstick: Yardstick, measured: Measurement | None, of: Sequence[Quantity]) -> dict[str, Any]:
    """By name; None of each where nothing was measured."""
    return {one.name: None if measured is None else one.of(yardstick, measured) for one in of}


def times_of(attempt: Attempt) -> dict[str, Any]:
    return {name: optional_time(getattr(attempt, name)) for name in TIMES}


def rfc3339(seconds: float) -> datetime:
    """Seconds since the epoch as a time that is written by RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC)


def optional_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else rfc3339(seconds)


_OF_BRIEF = shown_in(TrialBrief, but=["objective"])


def settings_of(ranking: Sequence[Ranked]) -> dict[Plan, SettingView]:
    """Of the plans with second runs."""
    return {
        entry.trial.plan: view_of(
            SettingView, entry, trial=entry.trial.number, runs=len(entry.runs) - 1, gain_over_baseline=entry.gain
        )
        for entry in ranking
        if entry.again
    }


def trial_briefs(campaign: Campaign, trials: Sequence[Trial], again: Sequence[Trial]) -> list[TrialBrief]:
    """again: the baseline, and all trials of plans that were to be measured again."""
    spec, ranking = campaign.spec, rank(campaign, again)
    yardstick, settings, base = yardstick_of(spec), settings_of(ranking), baseline_of(ranking)
    baseline = {} if base is None else {trial.round: trial for trial in (base.trial, *base.again)}
    return [
        view_of(
            TrialBrief,
            trial,
            trial.last,
            failure=getattr(trial.outcome, "failure", None),
            reason=getattr(trial.outcome, "reason", ""),
            objective=None if trial.measurement is None else yardstick.reached(trial.measurement),
            gain_over_baseline=trial_gain(spec.objective, trial, baseline),
            setting=settings.get(trial.plan),
            device_seconds=trial.device_s,
            attempts=len(trial.attempts),
            **numbers_of(yardstick, trial.measurement, _OF_BRIEF),
            **times_of(trial.last),
        )
        for trial in trials
    ]
