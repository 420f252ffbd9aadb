"""The belief after the trials: the speeds of plans, and the probability that they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshtune.search_spaces.columns import FloatColumn
from meshtune.tuner.search.physics.feasibility import Feasibility, Tried, learn_feasibility
from meshtune.tuner.search.physics.history import Trials
from meshtune.tuner.search.physics.prior import Rows
from meshtune.tuner.search.physics.speed import HYPOTHESES, Expects, Speeds, learn_speeds


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsOptions:
    """Parts of the belief; all of them, unless an experiment shows the contribution of each.

    prior: the physics' times. fits: the probability that a plan runs. residual: what was measured.
    """

    prior: bool = True
    fits: bool = True
    residual: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """runs: the probability that each plan fits into memory and runs. peak, peak_sd: mean and standard deviation of the
    logarithm of its peak; the physics' own without a feasibility."""

    runs: FloatColumn
    peak: FloatColumn
    peak_sd: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """feasibility None: every plan is taken to run."""

    speeds: Speeds
    feasibility: Feasibility | None

    def memory(self, rows: Rows) -> Memory:
        """The belief about the memory of these plans."""
        feasibility = self.feasibility or learn_feasibility(_nothing(rows))
        peaks = feasibility.peaks(rows)
        runs = np.ones(len(rows)) if self.feasibility is None else self.feasibility.runs(rows, peaks)
        return Memory(runs, *moments(peaks))


def believe(trials: Trials, options: PhysicsOptions) -> Belief:
    """The belief after these trials."""
    hypotheses = [one for one in HYPOTHESES if options.prior or one.expects is Expects.ALIKE]
    if options.residual:
        speeds = learn_speeds(trials.measured, trials.log_times, trials.weights, hypotheses)
        tried = trials.tried
    else:
        nothing = trials.measured.take(slice(0, 0))
        speeds, tried = learn_speeds(nothing, np.zeros(0), np.zeros(0), hypotheses), _nothing(nothing)
    return Belief(speeds, learn_feasibility(tried) if options.fits else None)


def moments(mixture: Sequence[tuple[float, FloatColumn, FloatColumn]]) -> tuple[FloatColumn, FloatColumn]:
    """Mean and standard deviation of a mixture of (weight, means, standard deviations)."""
    mean: FloatColumn = np.sum([weight * means for weight, means, _ in mixture], axis=0)
    square = np.sum([weight * (sd**2 + (means - mean) ** 2) for weight, means, sd in mixture], axis=0)
    return mean, np.sqrt(square)


def _nothing(rows: Rows) -> Tried:
    return Tried(rows.take(slice(0, 0)), np.zeros(0), [], np.zeros(0))
