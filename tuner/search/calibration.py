"""The calibration's design of experiments: plans whose times and peaks say most of the physics' constants.

Sequential and Bayesian D-optimal: each plan is the one that shrinks the volume of the constants' covariance most, to
first order in their logarithms (Chaloner and Verdinelli 1995), among those that likely fit and are not far slower than
the fastest. What was measured moves the constants, and so the next choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

import numpy as np
import numpy.typing as npt

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import Columns, columns_of, rows
from meshtune.search_spaces.physics.constants import MEMORY_CONSTANTS, TIME_CONSTANTS, Calibration
from meshtune.search_spaces.physics.estimate import Estimates, estimate, log_peak, log_step, slopes
from meshtune.search_spaces.physics.fitting import Measured, calibrate
from meshtune.search_spaces.physics.training import Training, missing
from meshtune.tuner.campaign.trial import Choice, Expectation, Proposal
from meshtune.tuner.prediction.predict import WIDTH
from meshtune.tuner.search.base import Observation, SearchMisconfigured, Task
from meshtune.tuner.search.registry import NoOptions

# Probabilities to fit: a plan below one is not tried while one above it is left.
SURE, LIKELY = 0.9, 0.5
# Plans that take longer per token than so many times the fastest come last: the formulas err most there, and nobody
# would use them (docs/decisions/physics.md#d0050).
MAX_SLOWER = 1.5
# Later trials do not move the design any more.
MAX_LEARNT = 32
# Of larger spaces, so many evenly spaced plans are looked at.
MAX_CANDIDATES = 20_000

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CalibrationSearch:
    """Has no randomness and no state."""

    seed: int = 0
    options: NoOptions = field(default_factory=NoOptions)

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        if unknown := missing(task.training):
            raise SearchMisconfigured(f"there is nothing to calibrate: {'; '.join(map(str, unknown))}")
        space, tried = task.space, {one.plan for one in seen}
        every = np.linspace(0, len(space) - 1, min(len(space), MAX_CANDIDATES)).astype(np.int64)
        unseen = np.array([index for index in every if space[int(index)] not in tried], dtype=np.int64)
        if n <= 0 or not len(unseen):
            return Proposal(())
        known = _learnt(task, seen)
        expected = estimate(task.training, rows(space.columns, unseen), known)
        design, under_way = Design(known.covariance), [one.plan for one in seen if one.verdict is None]
        tells = tells_of(task.training, columns_of(under_way), known)
        for at in range(len(under_way)):
            design.take(tells, at)
        tells, chosen = tells_of(task.training, expected.columns, known), list[int]()
        for among in _worthwhile(expected):
            chosen += design.choose(tells, among, n - len(chosen))
        return Proposal(tuple(Choice(space[int(unseen[at])], _expectation(expected, at)) for at in chosen))


def _expectation(expected: Estimates, at: int) -> Expectation:
    step_s, factor = float(expected.time.step_s[at]), exp(WIDTH * float(expected.time.log_sd[at]))
    return Expectation(
        step_time_s=step_s,
        step_time_low_s=step_s / factor,
        step_time_high_s=step_s * factor,
        p_fits=float(expected.fits[at]),
        gain=0.0,
        peak_bytes=float(expected.memory.peak_bytes[at]),
    )


def _worthwhile(expected: Estimates) -> list[npt.NDArray[np.bool_]]:
    """Masks of plans: those to choose from, then those for when none of them is left."""
    sure = expected.fits >= SURE
    speed = expected.tokens_per_s
    fast = speed * MAX_SLOWER >= np.max(speed, where=sure, initial=0.0)
    return [sure & fast, sure & ~fast, ~sure & (expected.fits >= LIKELY), expected.fits < LIKELY]


Tells = tuple[Matrix, Matrix]


class Design:
    """The covariance of the constants' logarithms, after what was measured and what is expected to be."""

    def __init__(self, covariance: Matrix) -> None:
        self.covariance = covariance

    def gains(self, tells: Tells) -> npt.NDArray[np.float64]:
        """By how much each plan lowers the log determinant; times and peaks depend on different constants."""
        logs = [np.log1p(np.sum(slope @ self.covariance * slope, axis=1)) for slope in tells]
        total: npt.NDArray[np.float64] = np.sum(logs, axis=0)
        return total

    def take(self, tells: Tells, at: int) -> None:
        """As if the plan in this row were measured (Sherman and Morrison 1950)."""
        for slope in tells:
            moved = self.covariance @ slope[at]
            self.covariance = self.covariance - np.outer(moved, moved) / (1 + slope[at] @ moved)

    def choose(self, tells: Tells, among: npt.NDArray[np.bool_], n: int) -> list[int]:
        """The rows of up to n plans of a mask, one after the other."""
        left, chosen = among.copy(), list[int]()
        while len(chosen) < n and np.any(left):
            at = int(np.argmax(np.where(left, self.gains(tells), -np.inf)))
            self.take(tells, at)
            left[at] = False
            chosen.append(at)
        return chosen


def tells_of(training: Training, columns: Columns, known: Calibration) -> Tells:
    """Derivatives by the constants' logarithms, plans x constants: of times and of peaks, in units of the scatter."""
    times = slopes(log_step, training, columns, known.constants, TIME_CONSTANTS) / known.time_log_sd
    peaks = slopes(log_peak, training, columns, known.constants, MEMORY_CONSTANTS) / known.memory_log_sd
    return times, peaks


def _learnt(task: Task, seen: Sequence[Observation]) -> Calibration:
    """The task's calibration after the trials that were measured or ran out of memory."""
    teaching = [one for one in seen if one.verdict in (Verdict.OK, Verdict.OOM)][:MAX_LEARNT]
    if not teaching:
        return task.calibration
    measured = Measured(
        step_time_s=np.array([one.step_time_s or np.nan for one in teaching]),
        peak_memory_bytes=np.array([one.peak_bytes or np.nan for one in teaching]),
        oom=np.array([one.verdict is Verdict.OOM for one in teaching], dtype=np.bool_),
    )
    plans = columns_of([one.plan for one in teaching])
    return calibrate([(estimate(task.training, plans), measured)], task.calibration)
