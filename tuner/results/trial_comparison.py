"""Two to five trials of a campaign side by side: the settings that differ, speed, memory, and where the time of a step
went. Numbers are those of each trial's own run. Pure: a campaign and trials in, a value out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.trial import Origin, PartTime, Trial, TrialState, time_by_part
from meshtune.tuner.results.quantities import numbers_of, shown_in
from meshtune.tuner.results.views import ObjectiveView, objective_view, view_of

FEWEST, MOST = 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of the plan, or a knob, that is not alike. values: in the order of the trials; null where a knob is
    inactive."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTrial:
    """One trial. objective, step_time_s, tokens_per_s: of this run alone; null where it measured nothing. relative: its
    speed over that of the first trial that measured something, as the objective compares speeds; 1 for that one.
    peak_memory_bytes: of tensors on the most loaded rank. parts: where the time of a profiled step went; empty where it
    was not profiled."""

    trial: int
    plan_key: str
    origin: Origin
    state: TrialState
    verdict: Verdict | None
    objective: ObjectiveView | None
    step_time_s: float | None
    tokens_per_s: float | None
    relative: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    parts: tuple[PartTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialComparison:
    """Trials in the order asked for. simulated: no device measured the numbers. differences: in the order of a plan's
    fields, then of knobs; empty where the trials ran one plan."""

    campaign: str
    simulated: bool
    differences: tuple[Difference, ...]
    trials: tuple[ComparedTrial, ...]


_OF_TRIAL = shown_in(ComparedTrial, but=["objective"])


def side_by_side(campaign: Campaign, trials: Sequence[Trial]) -> TrialComparison:
    """trials: complete ones, with their profiles."""
    settings = [_settings(trial) for trial in trials]
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    rows = [Difference(name=name, values=tuple(setting.get(name) for setting in settings)) for name in names]
    speeds = [_speed(campaign, trial) for trial in trials]
    first = next((speed for speed in speeds if speed is not None), None)
    return TrialComparison(
        campaign=campaign.id,
        simulated=campaign.simulated,
        differences=tuple(row for row in rows if any(value != row.values[0] for value in row.values)),
        trials=tuple(_compared(campaign, trial, speed, first) for trial, speed in zip(trials, speeds, strict=True)),
    )


def _settings(trial: Trial) -> dict[str, Any]:
    return {**trial.plan.axes_as_dict(), "global_batch_size": trial.plan.global_batch_size, **trial.plan.knobs}


def _speed(campaign: Campaign, trial: Trial) -> float | None:
    measured = trial.measurement
    return None if measured is None else campaign.spec.objective.speed(measured, measured.step_time_s)


def _compared(campaign: Campaign, trial: Trial, speed: float | None, first: float | None) -> ComparedTrial:
    measured, yardstick = trial.measurement, yardstick_of(campaign.spec)
    return view_of(
        ComparedTrial,
        trial,
        trial=trial.number,
        plan_key=trial.plan.key,
        objective=None if measured is None else objective_view(campaign.spec, yardstick.reached(measured)),
        relative=None if speed is None or first is None else speed / first,
        parts=() if measured is None else tuple(time_by_part(measured.profile)),
        **numbers_of(yardstick, measured, _OF_TRIAL),
    )
