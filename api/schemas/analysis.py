"""What the REST API shows of an analysis: the shape of `Analysis.document()`, as of `meshtune analyze --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.api.schemas.quote import BasisView
from meshtune.runners.documents import read_value
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.step_parts import PartTime
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.results.analysis.forecast_check import FitCheck, StepCheck
from meshtune.tuner.results.analysis.knob_effects import Evidence
from meshtune.tuner.results.analysis.knob_importance import Sensitivity

# What a dimension of the space may hold.
Value = bool | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    """A knob that has to change with another one."""

    knob: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectView:
    """A change for the better, all else equal. gain: a ratio of speeds minus 1; measured: the median of the pairs, from
    the smallest to the largest; predicted: with its 95 % interval. p_fits, ended: of a predicted faster plan."""

    knob: str
    before: Value
    after: Value
    followers: list[ChangeView]
    gain: Estimate
    evidence: Evidence
    pairs: int
    p_fits: float | None
    ended: Verdict | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """Some trials in the order of planning. rate: the share that failed."""

    first: int
    last: int
    trials: int
    failed: int
    rate: float
    verdicts: Mapping[Verdict, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """All trials up to this one."""

    trial: int
    failed: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresView:
    """How many trials failed: all, after each trial, and in windows. all: null before any trial has ended."""

    all: WindowView | None
    so_far: list[RateView]
    windows: list[WindowView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastView:
    """What was expected of one trial, and what came. ratio: measured over expected."""

    trial: int
    plan_key: str
    expected_s: Estimate
    measured_s: float
    ratio: float
    within: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HindsightView:
    """Expectations against outcomes. steps, fits: null where there is nothing to compare."""

    forecasts: list[ForecastView]
    steps: StepCheck | None
    fits: FitCheck | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerView:
    """One of the best plans. savings_s: seconds per step that each part takes less than with the rival, the largest
    first; parts and savings rest on `evidence`."""

    rank: int
    trial: int
    plan: Plan
    plan_key: str
    step_s: float
    parts: list[PartTime]
    evidence: Evidence | None
    rival: str | None
    rival_trial: int | None
    gain: float | None
    savings_s: Mapping[str, float]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisView:
    """What the trials of a campaign teach. simulated: nothing of it was measured on any device. basis: what predictions
    rest on; null, for the reason in `unpredicted`, where there are none."""

    campaign: str
    simulated: bool
    trials: int
    sensitivity: Sensitivity
    effects: list[EffectView]
    failures: FailuresView
    hindsight: HindsightView
    winners: list[WinnerView]
    basis: BasisView | None
    unpredicted: str


def analysis_view(found: Analysis) -> AnalysisView:
    return read_value(AnalysisView, found.document())
