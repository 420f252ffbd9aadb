"""Calibration: the constants that explain what was measured, with their priors, and how sure one may be of them.

Maximum a posteriori in the logarithms of the constants. A measured step or peak scatters around the formula with
Student's t, so that one pathological run (a slow node, a retry of the network) does not drag the constants along; a
plan that ran out of memory says only that its peak lies above the device's (a censored observation). The covariance is
that of the curvature at the optimum (Laplace's approximation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erf, exp, log, pi, sqrt

import numpy as np
import numpy.typing as npt

from search_spaces.calibration import UNCALIBRATED, Calibration, Measured
from search_spaces.columns import Columns, FloatColumn, rows
from search_spaces.constants import CONSTANTS, MEMORY_CONSTANTS, TIME_CONSTANTS, Constants
from search_spaces.estimates import Estimates, Training, usable_bytes
from search_spaces.physics import Logs, log_peak, log_step, slopes

# Degrees of freedom: 2 let one run in ten lie far off, as public measurements do (docs/physics.md).
FREEDOM = 2.0
# The scatter around the formulas is itself learnt; its prior weighs as much as so many measurements.
PRIOR_ROWS = 6.0
MOST_ROUNDS = 25
ENOUGH = 1e-4
# Some constants span orders of magnitude (a network that retries sends in 0.4 s, not 0.4 ms), where the surface has
# several valleys: the search for the optimum starts in each of these, in units of the prior's standard deviation.
STARTS: tuple[dict[str, float], ...] = ({}, {"send_overhead_s": 3.0}, {"send_overhead_s": 7.0})

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Model:
    """A formula over the plans that were measured, of one training after the other."""

    logs: Logs
    plans: Sequence[tuple[Training, Columns]]

    def at(self, constants: Constants) -> FloatColumn:
        return _joined([self.logs(training, columns, constants) for training, columns in self.plans])

    def slopes(self, constants: Constants, names: Sequence[str]) -> Matrix:
        return np.concatenate([slopes(self.logs, *plans, constants, names) for plans in self.plans])


@dataclass(frozen=True, slots=True)
class _Data:
    """Logarithms of what was measured, or of the bound that a censored row lies above."""

    values: FloatColumn
    censored: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Fit:
    constants: Constants
    covariance: Matrix
    log_sd: float
    loss: float


def calibrate(observed: Sequence[tuple[Estimates, Measured]], prior: Calibration = UNCALIBRATED) -> Calibration:
    """The calibration after these measurements, of one cluster (several models and sizes of it may be mixed).

    Each measurement belongs to the plan in the same row of its estimates. Works from no measurement up: then it is the
    prior. A calibration may be the prior of the next.
    """
    time_rows = [(e, np.flatnonzero(np.isfinite(m.step_time_s)), m) for e, m in observed]
    peak_rows = [(e, np.flatnonzero(np.isfinite(m.peak_memory_bytes) | m.oom), m) for e, m in observed]
    times = _Data(
        _joined([np.log(m.step_time_s[index]) for _, index, m in time_rows]),
        np.zeros(sum(len(index) for _, index, _ in time_rows), dtype=np.bool_),
    )
    peaks = _Data(
        _joined([_log_peaks(e, m, index) for e, index, m in peak_rows]),
        np.concatenate([m.oom[index] for _, index, m in peak_rows]) if peak_rows else np.zeros(0, dtype=np.bool_),
    )

    steps = _Model(log_step, [(e.training, rows(e.columns, i)) for e, i, _ in time_rows if len(i)])
    sizes = _Model(log_peak, [(e.training, rows(e.columns, i)) for e, i, _ in peak_rows if len(i)])
    time_fit = _fit(steps, times, prior, TIME_CONSTANTS, prior.time_log_sd, prior.times)
    after = replace(prior, constants=time_fit.constants, covariance=time_fit.covariance)
    memory_fit = _fit(sizes, peaks, after, MEMORY_CONSTANTS, prior.memory_log_sd, prior.memories)
    return Calibration(
        memory_fit.constants,
        memory_fit.covariance,
        time_log_sd=time_fit.log_sd,
        memory_log_sd=memory_fit.log_sd,
        times=prior.times + len(times.values),
        memories=prior.memories + int(np.count_nonzero(~peaks.censored)),
        ooms=prior.ooms + int(np.count_nonzero(peaks.censored)),
    )


def _log_peaks(estimates: Estimates, measured: Measured, index: npt.NDArray[np.intp]) -> FloatColumn:
    bound = usable_bytes(estimates.training.cluster)
    logs: FloatColumn = np.log(np.where(measured.oom[index], bound, measured.peak_memory_bytes[index]))
    return logs


def _joined(columns: Sequence[FloatColumn]) -> FloatColumn:
    return np.concatenate(columns) if columns else np.zeros(0)


def _fit(model: _Model, data: _Data, prior: Calibration, names: Sequence[str], log_sd: float, seen: int) -> _Fit:
    """The best of the fits from every start that moves one of `names`."""
    if not len(data.values):
        return _Fit(prior.constants, prior.covariance, log_sd, 0.0)
    places = [CONSTANTS.index(name) for name in names]
    precision = np.linalg.inv(prior.covariance[np.ix_(places, places)]).astype(np.float64)
    spread = np.sqrt(np.diag(prior.covariance))
    fits = []
    for start in STARTS:
        if all(name in names for name in start):
            moved = {n: getattr(prior.constants, n) * exp(by * spread[CONSTANTS.index(n)]) for n, by in start.items()}
            begin = replace(prior.constants, **moved)
            fits.append(_descend(model, data, begin, prior, names, precision, log_sd, seen))
    return min(fits, key=lambda fit: fit.loss)


def _descend(
    model: _Model,
    data: _Data,
    begin: Constants,
    prior: Calibration,
    names: Sequence[str],
    precision: Matrix,
    log_sd: float,
    seen: int,
) -> _Fit:
    """Newton's method with the scatter's own curvature, damped (Levenberg 1944)."""
    places = [CONSTANTS.index(name) for name in names]
    center = np.array([log(getattr(prior.constants, name)) for name in names])
    at = np.array([log(getattr(begin, name)) for name in names])
    sd, damping = log_sd, 1e-2

    def constants_at(point: FloatColumn) -> Constants:
        values = {name: exp(value) for name, value in zip(names, point.tolist(), strict=True)}
        return replace(prior.constants, **values)

    def loss_at(point: FloatColumn, scatter: float) -> float:
        off = point - center
        return float(_losses(data, model.at(constants_at(point)), scatter).sum() + off @ precision @ off / 2)

    hessian = precision
    for _ in range(MOST_ROUNDS):
        constants = constants_at(at)
        expected = model.at(constants)
        slope = model.slopes(constants, names)[:, places]
        pull, weight = _derivatives(data, expected, sd)
        gradient = slope.T @ pull + precision @ (at - center)
        hessian = slope.T @ (weight[:, None] * slope) + precision
        now = loss_at(at, sd)
        for _ in range(8):
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            if loss_at(at + step, sd) <= now:
                damping = max(damping / 5, 1e-6)
                break
            damping *= 6
        else:
            break
        at = at + step
        if np.max(np.abs(step)) < ENOUGH:
            break
        sd = _scatter(data, model.at(constants_at(at)), log_sd, seen)
    covariance = prior.covariance.copy()
    covariance[np.ix_(places, places)] = np.linalg.inv(hessian)
    loss = loss_at(at, sd) + (len(data.values) + PRIOR_ROWS + seen) * log(sd)
    return _Fit(constants_at(at), covariance, sd, loss)


def _losses(data: _Data, expected: FloatColumn, sd: float) -> FloatColumn:
    off = (data.values - expected) / sd
    scattered = (FREEDOM + 1) / 2 * np.log1p(off**2 / FREEDOM)
    return np.where(data.censored, -np.log(_above(off)), scattered)


def _derivatives(data: _Data, expected: FloatColumn, sd: float) -> tuple[FloatColumn, FloatColumn]:
    """Of each row's loss by the expected logarithm: the first, and a positive stand-in for the second."""
    off = (data.values - expected) / sd
    weight = (FREEDOM + 1) / (FREEDOM + off**2) / sd**2
    hazard = np.exp(-(off**2) / 2) / sqrt(2 * pi) / _above(off)
    pull = np.where(data.censored, -hazard / sd, -weight * off * sd)
    curvature = np.where(data.censored, np.maximum(hazard * (hazard - off), 0.0) / sd**2, weight)
    return pull, curvature


def _above(off: FloatColumn) -> FloatColumn:
    """The probability that a normal value lies above `off`, kept off zero."""
    return np.array([max(0.5 * (1 - erf(one / sqrt(2))), 1e-12) for one in off.tolist()])


def _scatter(data: _Data, expected: FloatColumn, log_sd: float, seen: int) -> float:
    """The scatter's scale: a mean of squares, far-off rows counted less as Student's t does, and the prior's share."""
    off = (data.values - expected)[~data.censored]
    weight = (FREEDOM + 1) / (FREEDOM + (off / log_sd) ** 2)
    prior_rows = PRIOR_ROWS + seen
    return sqrt((prior_rows * log_sd**2 + float((weight * off**2).sum())) / (prior_rows + len(off)))
