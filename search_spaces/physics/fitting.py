"""Calibration: the constants that explain what was measured, with their priors, and how sure one may be of them.

Maximum a posteriori in the logarithms of the constants. A measured step or peak scatters around the formula with
Student's t, so that one pathological run (a slow node, a retry of the network) does not drag the constants along; a
plan that ran out of memory says only that its peak lies above the device's (a censored observation of the same
distribution). The covariance is that of the curvature at the optimum (Laplace's approximation)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.checks import Checks
from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LayerRate, LayerRun, MeasuredRates
from meshtune.search_spaces.columns import BoolColumn, Columns, FloatColumn, columns_of, rows
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import (
    CONSTANTS,
    DEFAULTS,
    MEMORY_CONSTANTS,
    TIME_CONSTANTS,
    UNCALIBRATED,
    Calibration,
    Constants,
)
from meshtune.search_spaces.physics.estimate import Estimates, Logs, log_peak, log_step, slopes
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile, compiled
from meshtune.search_spaces.physics.training import Training, usable_bytes
from meshtune.search_spaces.plan import Plan

# Degrees of freedom: 2 let one run in ten lie far off, as public measurements do (docs/explanation/physics.md).
# `_above` is the closed form for 2.
FREEDOM = 2.0
# The scatter around the formulas is itself learnt; its prior weighs as much as so many measurements.
PRIOR_ROWS = 6.0
MAX_ROUNDS = 25
ENOUGH = 1e-4
# Some constants span orders of magnitude (a network that retries sends in 0.4 s, not 0.4 ms), where the surface has
# several valleys: the search for the optimum starts in each of these, in units of the prior's standard deviation.
STARTS: tuple[dict[str, float], ...] = ({}, {"send_overhead_s": 3.0}, {"send_overhead_s": 7.0})

Matrix = npt.NDArray[np.float64]
# What a step takes beside its work, before any was timed.
USUAL_OVERHEAD_S = 2e-3
# The times' noise over the prior's doubt, in logarithms: times are good to 2 %, the prior to a factor of e.
NOISE = 0.02
ROUNDS, STEP = 12, 1e-3


@dataclass(frozen=True, slots=True)
class Measured:
    """Outcomes of plans, row by row: seconds per step and bytes at the fullest rank, NaN where nothing was measured.

    oom: the plan did not fit, so its peak lies above the device's memory (a censored observation). Raises InvalidValue.
    """

    step_time_s: FloatColumn
    peak_memory_bytes: FloatColumn
    oom: BoolColumn

    def __post_init__(self) -> None:
        checks = Checks()
        for name in ("step_time_s", "peak_memory_bytes"):
            column = getattr(self, name)
            checks.require(len(column) == len(self.oom), name, f"has {len(column)} rows, oom has {len(self.oom)}")
            for row in np.flatnonzero(column <= 0):
                checks.require(False, f"{name}[{row}]", f"must be positive, not {column[row]}")
        checks.done()


@dataclass(frozen=True, slots=True)
class _Target:
    """The loss of a fit: the distance of a formula from its data, and of its constants `names` from their prior.

    plans: those that were measured, of one training after the other. values: logarithms of what was measured, or of the
    bound that a censored row lies above. center, precision: the prior's, of the constants' logarithms. log_sd: the
    prior's scatter around the formula, which `weighs` as much as so many measurements.
    """

    logs: Logs
    plans: Sequence[tuple[Training, Columns]]
    values: FloatColumn
    censored: BoolColumn
    prior: Constants
    names: Sequence[str]
    center: FloatColumn
    precision: Matrix
    log_sd: float
    weighs: float

    def constants_at(self, point: FloatColumn) -> Constants:
        values = {name: exp(value) for name, value in zip(self.names, point.tolist(), strict=True)}
        return replace(self.prior, **values)

    def off_at(self, point: FloatColumn, sd: float) -> FloatColumn:
        """The rows' distances from the formula, in units of the scatter."""
        constants = self.constants_at(point)
        expected = _joined([self.logs(training, columns, constants) for training, columns in self.plans])
        return (self.values - expected) / sd

    def loss_at(self, point: FloatColumn, sd: float) -> float:
        away, off = point - self.center, self.off_at(point, sd)
        scattered = (FREEDOM + 1) / 2 * np.log1p(off**2 / FREEDOM)
        losses = np.where(self.censored, -np.log(_above(off)), scattered)
        return float(losses.sum() + away @ self.precision @ away / 2)

    def bends_at(self, point: FloatColumn, sd: float) -> tuple[FloatColumn, Matrix]:
        """The loss's gradient and, with a positive stand-in for the rows' own curvature, its Hessian."""
        off, constants = self.off_at(point, sd), self.constants_at(point)
        slope = np.concatenate([slopes(self.logs, *plans, constants, self.names) for plans in self.plans])
        slope = slope[:, [CONSTANTS.index(name) for name in self.names]]
        weight, hazard = (FREEDOM + 1) / (FREEDOM + off**2), _hazard(off)
        pull = np.where(self.censored, -hazard, -weight * off) / sd
        curvature = np.where(self.censored, np.maximum(hazard * (hazard - weight * off), 0.0), weight) / sd**2
        gradient = slope.T @ pull + self.precision @ (point - self.center)
        return gradient, slope.T @ (curvature[:, None] * slope) + self.precision

    def scatter_at(self, point: FloatColumn) -> float:
        """The scatter's scale: a mean of squares, far-off rows counted less as Student's t does, and the prior's share.
        A censored row widens it as far as its loss falls with the scale, and never narrows it."""
        off = self.off_at(point, self.log_sd)
        weight = (FREEDOM + 1) / (FREEDOM + off**2)
        squares = np.where(self.censored, np.maximum(_hazard(off) * off, 0.0), weight * off**2)
        measured = np.count_nonzero(~self.censored)
        return self.log_sd * sqrt((self.weighs + float(squares.sum())) / (self.weighs + measured))


@dataclass(frozen=True, slots=True)
class _Fit:
    """Where a descent ended. hessian: of the loss there."""

    point: FloatColumn
    hessian: Matrix
    log_sd: float
    loss: float


def calibrate(observed: Sequence[tuple[Estimates, Measured]], prior: Calibration = UNCALIBRATED) -> Calibration:
    """The calibration after these measurements, of one cluster (several models and sizes of it may be mixed).

    Each measurement belongs to the plan in the same row of its estimates. Works from no measurement up: then it is the
    prior. A calibration may be the prior of the next.
    """
    time_rows = [(e, np.flatnonzero(np.isfinite(m.step_time_s)), m) for e, m in observed]
    peak_rows = [(e, np.flatnonzero(np.isfinite(m.peak_memory_bytes) | m.oom), m) for e, m in observed]
    times = _joined([np.log(m.step_time_s[index]) for _, index, m in time_rows])
    bounds = [np.where(m.oom, usable_bytes(e.training), m.peak_memory_bytes)[index] for e, index, m in peak_rows]
    peaks = np.log(_joined(bounds))
    censored = np.concatenate([np.zeros(0, dtype=np.bool_), *(m.oom[index] for _, index, m in peak_rows)])
    measured = np.zeros(len(times), dtype=np.bool_)
    constants, covariance, time_log_sd = _fit(
        log_step, time_rows, times, measured, prior, TIME_CONSTANTS, prior.time_log_sd, PRIOR_ROWS + prior.times
    )
    after = replace(prior, constants=constants, covariance=covariance)
    constants, covariance, memory_log_sd = _fit(
        log_peak, peak_rows, peaks, censored, after, MEMORY_CONSTANTS, prior.memory_log_sd, PRIOR_ROWS + prior.memories
    )
    ooms = int(np.count_nonzero(censored))
    return Calibration(
        constants,
        covariance,
        time_log_sd=time_log_sd,
        memory_log_sd=memory_log_sd,
        times=prior.times + len(times),
        memories=prior.memories + len(peaks) - ooms,
        ooms=prior.ooms + ooms,
    )


def _joined(columns: Sequence[FloatColumn]) -> FloatColumn:
    return np.concatenate(columns) if columns else np.zeros(0)


def _fit(
    logs: Logs,
    fitted: Sequence[tuple[Estimates, npt.NDArray[np.intp], Measured]],
    values: FloatColumn,
    censored: BoolColumn,
    prior: Calibration,
    names: Sequence[str],
    log_sd: float,
    weighs: float,
) -> tuple[Constants, Matrix, float]:
    """The constants, their covariance and the scatter: the best of the descents from every start that moves one of
    `names`. fitted: the estimates, with the rows of them that `values` belong to."""
    if not len(values):
        return prior.constants, prior.covariance, log_sd
    plans = [(e.training, rows(e.columns, index)) for e, index, _ in fitted if len(index)]
    places = [CONSTANTS.index(name) for name in names]
    center = np.log([getattr(prior.constants, name) for name in names])
    precision = np.linalg.inv(prior.covariance[np.ix_(places, places)]).astype(np.float64)
    target = _Target(logs, plans, values, censored, prior.constants, names, center, precision, log_sd, weighs)
    starts = [start for start in STARTS if all(name in names for name in start)]
    shifts = [np.array([start.get(name, 0.0) * prior.log_sd(name) for name in names]) for start in starts]
    best = min((_descend(target, center + shift) for shift in shifts), key=lambda fit: fit.loss)
    covariance = prior.covariance.copy()
    covariance[np.ix_(places, places)] = np.linalg.inv(best.hessian)
    return target.constants_at(best.point), covariance, best.log_sd


def _descend(target: _Target, begin: FloatColumn) -> _Fit:
    """Newton's method with the scatter's own curvature, damped (Levenberg 1944)."""
    at, sd, damping, hessian = begin, target.log_sd, 1e-2, target.precision
    for _ in range(MAX_ROUNDS):
        gradient, hessian = target.bends_at(at, sd)
        now = target.loss_at(at, sd)
        for _ in range(8):
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            if target.loss_at(at + step, sd) <= now:
                damping = max(damping / 5, 1e-6)
                break
            damping *= 6
        else:
            break
        at = at + step
        if np.max(np.abs(step)) < ENOUGH:
            break
        sd = target.scatter_at(at)
    return _Fit(at, hessian, sd, target.loss_at(at, sd) + (len(target.values) + target.weighs) * log(sd))


def _above(off: FloatColumn) -> FloatColumn:
    """The probability that Student's t with 2 degrees of freedom lies above `off`: never 0, so that a plan that ran
    out of memory against all expectation still teaches."""
    radius = np.sqrt(FREEDOM + off**2)
    beyond = 1 / (radius * (radius + np.abs(off)))
    above: FloatColumn = np.where(off > 0, beyond, 1 - beyond)
    return above


def _hazard(off: FloatColumn) -> FloatColumn:
    """The density at `off`, given that the value lies above."""
    return (FREEDOM + off**2) ** -1.5 / _above(off)


def explained(
    device: DeviceSpec, model: ModelSpec, framework: FrameworkProfile, rates: MeasuredRates, runs: Sequence[LayerRun]
) -> MeasuredRates:
    """The rates with those that only whole steps tell: what a probe timed of a few real layers. framework: the
    trainer's, uncompiled, in the number format of both.

    Products, attention and the host's work were timed by themselves; what is left of a step is the layers' other work
    at either micro-batch, the loss's, and the step's overhead. Least squares of the times' logarithms over the
    logarithms of these, with a weak prior, so that what no run tells stays what it was taken for."""
    if not runs:
        return rates
    places = sorted({(run.compiled, run.micro_batch_size * model.seq_len) for run in runs})

    def rates_at(point: FloatColumn) -> MeasuredRates:
        *layers, loss, overhead = np.exp(point).tolist()
        known = [
            (kind, LayerRate(tokens=tokens, bytes_per_s=rate))
            for (kind, tokens), rate in zip(places, layers, strict=True)
        ]
        return replace(
            rates,
            layer_bytes_per_s=tuple(rate for kind, rate in known if not kind),
            compiled_layer_bytes_per_s=tuple(rate for kind, rate in known if kind),
            loss_bytes_per_s=loss,
            step_overhead_s=overhead,
        )

    def logs_at(point: FloatColumn) -> FloatColumn:
        known = replace(device, measured={framework.dtype: rates_at(point)})
        cluster = ClusterSpec(name="probed", nodes=1, devices_per_node=1, device=known)
        steps = []
        for run in runs:
            code = compiled(framework) if run.compiled else framework
            training = Training(replace(model, layers=run.layers), cluster, code)
            steps.append(log_step(training, columns_of([Plan(micro_batch_size=run.micro_batch_size)]), DEFAULTS))
        return np.concatenate(steps)

    assert device.memory_bandwidth_bytes_per_s is not None
    start = np.log([device.memory_bandwidth_bytes_per_s] * (len(places) + 1) + [USUAL_OVERHEAD_S])
    times, point = np.log([run.step_s for run in runs]), start
    for _ in range(ROUNDS):
        now, unit = logs_at(point), STEP * np.eye(len(point))
        slopes = np.stack([(logs_at(point + each) - now) / STEP for each in unit], axis=1)
        system = np.concatenate([slopes, NOISE * np.eye(len(point))])
        off = np.concatenate([times - now, NOISE * (start - point)])
        # A long step of a bad first guess would leave where the slopes hold.
        point = point + np.clip(np.linalg.lstsq(system, off, rcond=None)[0], -1.0, 1.0)
    return rates_at(point)
