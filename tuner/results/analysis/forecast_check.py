"""The check of the search's forecasts against outcomes: step times, and whether plans fit.

Only forecasts from the time when a plan was chosen count; a search without expectations leaves nothing to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

import numpy as np
import numpy.typing as npt

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate, percent

# The edges of the classes that expectations are counted in by P(fits); those of a quote.
EDGES = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One measured trial. expected_s: seconds per step, with the ends of the 95 % interval. ratio: measured over
    expected. within: the measured time lies in the interval."""

    trial: int
    plan_key: str
    expected_s: Estimate
    measured_s: float
    ratio: float
    within: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """Over all forecasts. within: the share of measured times inside of their 95 % intervals. median_error: of
    |measured / expected - 1|. spearman: the rank correlation; None for one forecast, or where all are equal."""

    trials: int
    within: float
    median_error: float
    spearman: float | None

    def words(self, made: str = "measured") -> str:
        """made: what the times are."""
        ranks = "" if self.spearman is None else f", rank correlation {self.spearman:.2f}"
        return (
            f"Expected against {made} step times: {percent(self.within)} of {self.trials} within their "
            f"95 % interval, median error {percent(self.median_error)}{ranks}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitClass:
    """The trials whose P(fits) was from low to below high (1 belongs to the last class). expected: the sum of their
    probabilities; fitted: how many did fit."""

    low: float
    high: float
    trials: int
    expected: float
    fitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCheck:
    """Over the trials that ran or ran out of memory. brier: the mean of (P(fits) - 1 or 0) squared; 0 is perfect.
    brier_of_share: of the forecast that every trial fits with the share that did, which is known only afterwards."""

    trials: int
    fitted: int
    expected: float
    brier: float
    brier_of_share: float
    classes: tuple[FitClass, ...]

    def __str__(self) -> str:
        return (
            f"Expected to fit: {self.expected:.1f} of {self.trials} trials, {self.fitted} did; Brier score "
            f"{self.brier:.3f}, against {self.brier_of_share:.3f} of always telling "
            f"{percent(self.fitted / self.trials)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastCheck:
    """Forecasts against outcomes, in the order of planning. steps, fits: null where there is nothing to compare."""

    forecasts: tuple[Forecast, ...]
    steps: StepCheck | None
    fits: FitCheck | None


def check_forecasts(trials: Sequence[Trial]) -> ForecastCheck:
    """Every forecast that can be compared with an outcome."""
    forecasts = []
    for trial in trials:
        known, measured = trial.expectation, trial.measurement
        if known is None or measured is None:
            continue
        low, high, time_s = known.step_time_low_s, known.step_time_high_s, measured.step_time_s
        forecasts.append(
            Forecast(
                trial=trial.number,
                plan_key=trial.plan.key,
                expected_s=Estimate(known.step_time_s, low, high),
                measured_s=time_s,
                ratio=time_s / known.step_time_s,
                within=low <= time_s <= high,
            )
        )
    fits = [
        (trial.expectation.p_fits, trial.verdict is not Verdict.OOM)
        for trial in trials
        # A pruned trial ran; a crash or a time limit may hide a plan that does not fit.
        if trial.expectation is not None and trial.verdict in (Verdict.OK, Verdict.PRUNED, Verdict.OOM)
    ]
    steps = None
    if forecasts:
        steps = StepCheck(
            trials=len(forecasts),
            within=mean(forecast.within for forecast in forecasts),
            median_error=median(abs(forecast.ratio - 1) for forecast in forecasts),
            spearman=_spearman([one.expected_s.value for one in forecasts], [one.measured_s for one in forecasts]),
        )
    return ForecastCheck(forecasts=tuple(forecasts), steps=steps, fits=_check_fits(fits))


def _check_fits(fits: Sequence[tuple[float, bool]]) -> FitCheck | None:
    if not fits:
        return None
    share, classes = mean(fitted for _, fitted in fits), list[FitClass]()
    # The surest first, of those that hold a trial.
    for low, high in reversed(list(pairwise(EDGES))):
        inside = [(p_fits, fitted) for p_fits, fitted in fits if low <= p_fits < high or p_fits == high == EDGES[-1]]
        if inside:
            expected, fitted = (sum(column) for column in zip(*inside, strict=True))
            classes.append(FitClass(low=low, high=high, trials=len(inside), expected=expected, fitted=int(fitted)))
    return FitCheck(
        trials=len(fits),
        fitted=sum(fitted for _, fitted in fits),
        expected=sum(p_fits for p_fits, _ in fits),
        brier=mean((p_fits - fitted) ** 2 for p_fits, fitted in fits),
        brier_of_share=share * (1 - share),
        classes=tuple(classes),
    )


def _spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    one, other = (ranks - np.mean(ranks) for ranks in (_ranks(first), _ranks(second)))
    norm = float(np.sqrt(np.sum(one**2) * np.sum(other**2)))
    return float(np.sum(one * other)) / norm if norm > 0 else None


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: npt.NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return shared
