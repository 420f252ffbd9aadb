"""The belief after the trials, the worth of a trial of each candidate, and the choice of several at once.

Each is chosen as if the plans under way, and those chosen before it, had been measured just as expected (the kriging
believer, Ginsbourger et al. 2010). That moves no mean and takes doubt away around them, so a choice costs one product
of a matrix and a vector for each hypothesis, however much was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn
from meshtune.tuner.campaign.trial import Expectation
from meshtune.tuner.prediction.predict import WIDTH
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.physics import acquisition, feasibility, speed
from meshtune.tuner.search.physics.feasibility import Feasibility, Tried, learn_feasibility
from meshtune.tuner.search.physics.history import Trials
from meshtune.tuner.search.physics.prior import Rows, stack
from meshtune.tuner.search.physics.speed import Component, Expects, Speeds, Views, learn_speeds

# Two plans whose worth differs by less than this share are alike, and the seed chooses.
ALIKE = 1e-3
# Before anything is measured, a plan that so likely runs is as good as one that surely does.
LIKELY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsOptions:
    """Parts of the belief; all of them, unless an experiment shows the contribution of each.

    prior: the physics' times. fits: the probability that a plan runs. residual: what was measured.
    """

    prior: bool = True
    fits: bool = True
    residual: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypotheses:
    """What is held possible before any trial, of the plans' speeds and of their memory."""

    speeds: Sequence[speed.SpeedHypothesis] = speed.HYPOTHESES
    memory: Sequence[feasibility.MemoryHypothesis] = feasibility.HYPOTHESES


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """runs: the probability that each plan fits into memory and runs. peak, peak_sd: mean and standard deviation of the
    logarithm of its peak; the physics' own without a feasibility."""

    runs: FloatColumn
    peak: FloatColumn
    peak_sd: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """ignores_memory: every plan is taken to run."""

    speeds: Speeds
    feasibility: Feasibility
    ignores_memory: bool = False

    def memory(self, rows: Rows) -> Memory:
        peaks = self.feasibility.peaks(rows)
        runs = np.ones(len(rows)) if self.ignores_memory else self.feasibility.runs(rows, peaks)
        return Memory(runs, *moments(peaks))


def believe(trials: Trials, options: PhysicsOptions, hypotheses: Hypotheses) -> Belief:
    measured, tried = trials.measured, trials.tried
    log_times, weights = trials.log_times, trials.weights
    if not options.residual:
        measured, log_times, weights = measured.take(slice(0, 0)), np.zeros(0), np.zeros(0)
    if not (options.residual and options.fits):
        tried = Tried(tried.rows.take(slice(0, 0)), np.zeros(0), [], np.zeros(0))
    possible = [one for one in hypotheses.speeds if options.prior or one.expects is Expects.ALIKE]
    speeds = learn_speeds(measured, log_times, weights, possible)
    return Belief(speeds, learn_feasibility(tried, hypotheses.memory), ignores_memory=not options.fits)


def moments(mixture: Sequence[tuple[float, FloatColumn, FloatColumn]]) -> tuple[FloatColumn, FloatColumn]:
    """Mean and standard deviation of a mixture of (weight, means, standard deviations)."""
    mean: FloatColumn = np.sum([weight * means for weight, means, _ in mixture], axis=0)
    square = np.sum([weight * (sd**2 + (means - mean) ** 2) for weight, means, sd in mixture], axis=0)
    return mean, np.sqrt(square)


@dataclass(frozen=True, slots=True, eq=False)
class Weighing:
    """Candidates under a belief. views: of the candidates, then of the plans under way. components: what each
    hypothesis says of the candidates' speeds. memory: what is believed of theirs. best: log(seconds per token) to
    improve on, None while nothing is known to run. heavy: improvements by Student's t, as no physics says how far off
    plans are, or their knobs."""

    trials: Trials
    rows: Rows
    belief: Belief
    views: Views
    components: Sequence[Component]
    memory: Memory
    best: float | None
    pareto: bool
    seed: int
    heavy: bool

    def worth(self) -> FloatColumn:
        """The logarithm of what a trial of each candidate is worth."""
        log_runs = np.log(np.maximum(self.memory.runs, 1e-12))
        time, _ = moments(self.components)
        if self.best is None:
            return -time + np.minimum(log_runs, np.log(LIKELY))
        front = self._front()
        if front is None:
            gain = self._log_improvement(self.components, self.best)
        else:
            gain = acquisition.log_expected_growth(front, self._outlook(), self.seed)
        cost: FloatColumn = np.log(self.trials.cost.of(time + self.rows.log_tokens, self.memory.runs))
        # A job on more devices costs more of them.
        return gain + log_runs - cost - self.rows.log_devices

    def choose(self, left: npt.NDArray[np.bool_]) -> int:
        worth = np.where(left, self.worth(), -np.inf)
        alike = np.flatnonzero(worth >= worth.max() - ALIKE)
        return int(np.random.default_rng(self.seed).choice(alike))

    def expectation(self, at: int) -> Expectation:
        components = [Component(weight, mean[at : at + 1], sd[at : at + 1]) for weight, mean, sd in self.components]
        _, spread = moments(components)
        sd, likeliest = float(spread[0]), max(components, key=lambda one: one.weight)
        step = float(likeliest.mean[0] + self.rows.log_tokens[at])
        runs = float(np.clip(self.memory.runs[at], 0.0, 1.0))
        gain = 0.0
        if self.best is not None:
            gain = float(np.expm1(np.exp(self._log_improvement(components, self.best)[0]))) * runs
        return Expectation(
            step_time_s=float(np.exp(step)),
            step_time_low_s=float(np.exp(step - WIDTH * sd)),
            step_time_high_s=float(np.exp(step + WIDTH * sd)),
            p_fits=runs,
            gain=gain,
            peak_bytes=float(np.exp(self.memory.peak[at])),
        )

    def chance_left(self, tolerance: float) -> float | None:
        """The probability that a candidate is better than the best by more than the tolerance, see `Proposal`."""
        if not len(self.trials.best):
            return None
        front = self._front()
        if front is not None:
            return acquisition.chance_of_growth(front, self._outlook(), self.memory.runs, tolerance, self.seed)
        single = self.components, self.memory.runs, self.rows
        return acquisition.chance_left(self.belief.speeds, *single, self.trials.best, tolerance, self.seed)

    def _log_improvement(self, components: Sequence[Component], best: float) -> FloatColumn:
        return acquisition.log_expected_improvement(components, best, heavy=self.heavy)

    def _front(self) -> acquisition.Front | None:
        if not self.pareto:
            return None
        return acquisition.measured_front(
            self.trials.own_times, self.trials.own_peaks, float(self.rows.log_capacity[0])
        )

    def _outlook(self) -> acquisition.Outlook:
        return acquisition.Outlook(*moments(self.components), self.memory.peak, self.memory.peak_sd)


def weigh(trials: Trials, rows: Rows, belief: Belief, task: Task, seed: int, *, residual: bool = True) -> Weighing:
    """The candidates `rows` under a belief. residual: the best measured speed counts."""
    views = belief.speeds.views(stack([rows, trials.pending]))
    best = float(np.min(trials.own_times)) if residual and len(trials.own_times) else None
    heavy = rows.knobs.shape[1] > 0 or not task.training.model.known
    components, memory = views.components(len(rows)), belief.memory(rows)
    return Weighing(trials, rows, belief, views, components, memory, best, task.pareto, seed, heavy)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A weighing of candidates. under_way_peaks: what is expected of the plans under way, as log(bytes)."""

    weighing: Weighing
    under_way_peaks: FloatColumn

    @classmethod
    def of(cls, weighing: Weighing) -> Batch:
        return cls(weighing, weighing.belief.memory(weighing.trials.pending).peak)

    def choices(self, most: int) -> Iterator[tuple[int, Weighing]]:
        """Up to `most` candidates, best first: the position of each, and the weighing that it was chosen by."""
        # As if the plans under way were measured just as expected.
        under_way = len(self.weighing.rows) + np.arange(len(self.under_way_peaks))
        batch = self.believing(under_way) if len(under_way) else self
        left = np.ones(len(self.weighing.rows), dtype=np.bool_)
        count = min(most, len(left))
        for number in range(count):
            at = batch.weighing.choose(left)
            left[at] = False
            yield at, batch.weighing
            if number + 1 < count:
                batch = batch.believing(np.array([at]))

    def believing(self, at: npt.NDArray[np.int64]) -> Batch:
        """The batch after the plans at these positions of the views were measured just as expected."""
        weighing, views = self.weighing, self.weighing.views.believing(at)
        times = moments(views.components())[0][at]
        best = float(np.min(times if weighing.best is None else np.append(times, weighing.best)))
        trials = weighing.trials
        if weighing.pareto:
            peaks = np.append(weighing.memory.peak, self.under_way_peaks)[at]
            trials = replace(
                trials, own_times=np.append(trials.own_times, times), own_peaks=np.append(trials.own_peaks, peaks)
            )
        components = views.components(len(weighing.rows))
        return replace(self, weighing=replace(weighing, views=views, components=components, best=best, trials=trials))
