"""The physics' constants as other sources have them: fitted to each source, then spread over the sources.

A source is one table. Each is fitted by itself from the first-principle prior (`calibrate`). What its rows say beyond
the prior is a normal density of the constants' logarithms, correlations included. Over the sources the logarithms are
normal, too: mean and covariance by expectation maximisation (Dempster et al. 1977; the hierarchical model of Gelman et
al., Bayesian Data Analysis, chapter 5), with the prior's doubt for `PRIOR_SOURCES` sources more. The next source is
drawn from that distribution: its covariance, and that of the mean, are the honest doubt of a prediction on a cluster
that nobody measured.
A source whose steps are all slower by one factor moves its efficiencies and overheads together: an offset that no
single constant explains is in the covariance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np
import numpy.typing as npt
from reported import Reported
from scipy.stats import norm
from scipy.stats import t as student_t
from scoring import Cell

from meshtune.search_spaces.columns import rows
from meshtune.search_spaces.physics.constants import (
    CONSTANTS,
    MEMORY_CONSTANTS,
    TIME_CONSTANTS,
    Calibration,
    Constants,
)
from meshtune.search_spaces.physics.estimate import Estimates, estimate, estimate_memory, estimate_time
from meshtune.search_spaces.physics.fitting import Measured, calibrate

# Before any table: orders of magnitude from data sheets and source code, and standard deviations of their logarithms.
# Products and kernels of attention reach nine tenths of their best, collectives eight; sides of a product lose half a
# tile of 128; one collective starts in tens of microseconds; what an allocator rounds up is some percent.
FIRST_PRINCIPLES: Mapping[str, tuple[float, float]] = {
    "matmul_efficiency": (0.9, 0.2),
    "attention_efficiency": (0.87, 0.3),
    "narrow_rows": (64.0, 0.5),
    "memory_efficiency": (0.8, 0.2),
    "launch_factor": (1.0, 0.25),
    "node_efficiency": (0.8, 0.3),
    "network_efficiency": (0.8, 0.4),
    "collective_overhead_s": (2e-5, 1.0),
    "congestion": (0.1, 0.7),
    "network_latency_factor": (1.0, 0.5),
    "send_overhead_s": (2e-4, 1.2),
    "exposed_reduction": (0.2, 0.7),
    "straggling": (0.01, 1.0),
    "step_overhead_s": (0.01, 0.7),
    "router_spread": (0.2, 1.0),
    "memory_factor": (1.0, 0.1),
    "memory_offset_bytes": (5e8, 1.0),
    "activation_factor": (1.05, 0.15),
    "late_buffers": (35.0, 0.3),
}
PRIOR = Calibration(
    Constants(**{name: value for name, (value, _) in FIRST_PRINCIPLES.items()}),
    np.diag([FIRST_PRINCIPLES[name][1] ** 2 for name in CONSTANTS]),
)
# Rows of a source that its fit looks at, spread evenly over some of its cells: every model and size costs anew.
FITTED_ROWS, FITTED_CELLS = 60, 12
# The prior's doubt weighs as much as that of so many sources; and rounds of expectation maximisation.
PRIOR_SOURCES = 2.0
ROUNDS = 50
# The scatter from plan to plan that no constant explains: never believed to be less.
LEAST_TIME_SD, LEAST_MEMORY_SD = 0.08, 0.05

Floats = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fitted:
    """One source's constants, and the rows that they are from."""

    source: str
    calibration: Calibration
    rows: Sequence[tuple[Estimates, Measured]] = ()


def fit_source(source: str, reports: Sequence[Reported], seed: int = 0) -> Fitted:
    """The calibration by this source's rows alone, from the prior."""
    found = observed(_spread_rows(reports, seed))
    return Fitted(source, calibrate(found, PRIOR), found)


def over_sources(fitted: Sequence[Fitted]) -> Calibration:
    """What the next source is expected to be like; without any, the prior."""
    if not fitted:
        return PRIOR
    center, doubt = _log_constants(PRIOR.constants), PRIOR.covariance
    told = [_beyond_prior(one.calibration) for one in fitted]
    mean, of_mean, spread = center, np.zeros_like(doubt), doubt
    for _ in range(ROUNDS):
        left = [np.linalg.inv(precision + np.linalg.inv(spread)) for precision, _ in told]
        # Of the mean over sources, with each source's own constants integrated out.
        known = [precision - precision @ own @ precision for own, (precision, _) in zip(left, told, strict=True)]
        pulls = [pull - precision @ own @ pull for own, (precision, pull) in zip(left, told, strict=True)]
        of_mean = np.linalg.inv(np.linalg.inv(doubt) + np.sum(known, axis=0))
        mean = of_mean @ (np.linalg.solve(doubt, center) + np.sum(pulls, axis=0))
        away = [own @ (pull - precision @ mean) for own, (precision, pull) in zip(left, told, strict=True)]
        squares = [own + np.outer(off, off) for own, off in zip(left, away, strict=True)]
        spread = (PRIOR_SOURCES * doubt + np.sum(squares, axis=0)) / (PRIOR_SOURCES + len(told))
    constants = Constants(**{name: exp(value) for name, value in zip(CONSTANTS, mean.tolist(), strict=True)})
    times = [one.calibration.time_log_sd for one in fitted if one.calibration.times]
    peaks = [one.calibration.memory_log_sd for one in fitted if one.calibration.memories]
    return replace(
        PRIOR,
        constants=constants,
        covariance=(spread + of_mean) * _few_sources(PRIOR_SOURCES + len(told)),
        time_log_sd=max(LEAST_TIME_SD, _root_mean_square(times)) if times else PRIOR.time_log_sd,
        memory_log_sd=max(LEAST_MEMORY_SD, _root_mean_square(peaks)) if peaks else PRIOR.memory_log_sd,
    )


def widened(fitted: Sequence[Fitted]) -> Calibration:
    """`over_sources`, with as much doubt as makes 90 % intervals hold on sources that the others predict: each is left
    out in turn, and nine tenths of the rows of every one lie within, but of a fifth of them, whose own faults (a
    network that retries, tests that run deterministically) would widen the intervals of all."""
    expected = over_sources(fitted)
    apart = [(one, over_sources([other for other in fitted if other is not one])) for one in fitted]
    scale = np.ones(len(CONSTANTS))
    widths = dict.fromkeys(("time", "memory"), 1.0)
    for what, names in (("time", TIME_CONSTANTS), ("memory", MEMORY_CONSTANTS)):
        misses = sorted(np.quantile(found, 0.9) for one, known in apart if len(found := _misses(one, known, what)))
        if len(misses) > PRIOR_SOURCES:
            widths[what] = max(1.0, float(misses[len(misses) * 4 // 5 - 1] / norm.ppf(0.95)))
        scale[[CONSTANTS.index(name) for name in names]] = widths[what]
    return replace(
        expected,
        covariance=expected.covariance * np.outer(scale, scale),
        time_log_sd=expected.time_log_sd * widths["time"],
        memory_log_sd=expected.memory_log_sd * widths["memory"],
    )


def _misses(fitted: Fitted, calibration: Calibration, what: str) -> Floats:
    """Distances of the source's rows from what is predicted, in predicted standard deviations."""
    found = [np.zeros(0)]
    for estimates, measured in fitted.rows:
        if what == "time":
            of_time = estimate_time(estimates.training, estimates.columns, calibration)
            logs = np.log(measured.step_time_s / of_time.step_s) / of_time.log_sd
        else:
            of_memory = estimate_memory(estimates.training, estimates.columns, calibration)
            logs = np.log(measured.peak_memory_bytes / of_memory.peak_bytes) / of_memory.log_sd
        found.append(np.abs(logs[np.isfinite(logs)]))
    return np.concatenate(found)


def _few_sources(freedom: float) -> float:
    """By how much a variance known from so few sources is too small for 90 % intervals of a normal distribution: the
    prediction is Student's t (Gelman et al., chapter 3)."""
    return float(student_t.ppf(0.95, freedom) / norm.ppf(0.95)) ** 2


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def moved(fitted: Fitted) -> Mapping[str, float]:
    """The constants that a source moved by more than half of the prior's doubt, as factors of the default."""
    before, after = (_log_constants(one) for one in (PRIOR.constants, fitted.calibration.constants))
    doubt = np.sqrt(np.diag(PRIOR.covariance))
    far = np.flatnonzero(np.abs(after - before) > 0.5 * doubt)
    return {CONSTANTS[place]: float(np.exp(after[place] - before[place])) for place in far}


def observed(reports: Sequence[Reported]) -> list[tuple[Estimates, Measured]]:
    """The rows as `calibrate` takes them."""
    cell = Cell(reports)
    found = []
    for group in cell.groups:
        times, peaks = cell.step_s[group.index], cell.peak_bytes[group.index]
        here = np.flatnonzero(np.isfinite(times) | np.isfinite(peaks))
        if len(here):
            told = Measured(times[here], peaks[here], np.zeros(len(here), dtype=np.bool_))
            found.append((estimate(group.training, rows(group.columns, here)), told))
    return found


def _spread_rows(reports: Sequence[Reported], seed: int) -> list[Reported]:
    """At most FITTED_ROWS that tell something, of FITTED_CELLS at most, as many of each as of any other."""
    random = np.random.default_rng(seed)
    cells: dict[tuple[str, int], list[Reported]] = {}
    for one in reports:
        if one.timed or one.peak_memory_bytes is not None:
            cells.setdefault((one.row.model, one.row.gpus), []).append(one)
    drawn = random.permutation(len(cells))[:FITTED_CELLS]
    some = [list(cells.values())[int(at)] for at in np.sort(drawn)]
    queues = [list(random.permutation(len(members))) for members in some]
    chosen: list[Reported] = []
    while len(chosen) < FITTED_ROWS and any(queues):
        for queue, members in zip(queues, some, strict=True):
            if queue and len(chosen) < FITTED_ROWS:
                chosen.append(members[int(queue.pop())])
    return chosen


def _log_constants(constants: Constants) -> Floats:
    return np.log([getattr(constants, name) for name in CONSTANTS])


def _beyond_prior(calibration: Calibration) -> tuple[Matrix, Floats]:
    """What the source's rows alone say of the constants' logarithms: the precision, and the precision times the mean;
    the prior is taken out of the posterior."""
    before, after = np.linalg.inv(PRIOR.covariance), np.linalg.inv(calibration.covariance)
    precision = _positive(after - before)
    return precision, precision @ _log_constants(PRIOR.constants) + after @ (
        _log_constants(calibration.constants) - _log_constants(PRIOR.constants)
    )


def _positive(precision: Matrix) -> Matrix:
    """Without the negative eigenvalues, which rounding leaves."""
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    kept: Matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return kept
