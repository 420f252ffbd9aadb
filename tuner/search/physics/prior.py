"""The physics' prior of plans: the numbers that a posterior starts from, row by row.

Times are logarithms of seconds per token, since the batch may be free, so that smaller is better for every objective.
Rows of other trainings (another model, another size of the cluster) stand in the same units beside them: that is how
earlier campaigns teach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log, log2

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import Columns, FloatColumn, columns_of
from meshtune.search_spaces.columns import rows as columns_at
from meshtune.search_spaces.physics.constants import MEMORY_CONSTANTS, TIME_CONSTANTS, UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import log_peak, log_step, slopes
from meshtune.search_spaces.physics.training import Training, usable_bytes, with_usual_speeds
from meshtune.search_spaces.plan import AXES, Plan
from meshtune.tuner.search.base import Task

Matrix = npt.NDArray[np.float64]

# How far apart two values are for the posterior, in units of a length scale of 1. Degrees and sizes count in factors
# of 2; what changes the code that runs (a stage of ZeRO, recomputation) is further apart. The scales of an earlier
# campaign count less: the physics carries most of what they change.
FACTORS = tuple(axis.name for axis in AXES if axis.is_factor)
CHOICES = tuple(axis.name for axis in AXES if not axis.is_factor and axis.name != "zero_stage")
PER_FACTOR = 1 / 2
PER_CHOICE = 1 / 1.5
PER_SCALE = 1 / 4
# Of the peak, reached by plans of which nothing is known.
USUAL_SHARE = 0.4
# A network that retries sends: every transfer between stages takes a quarter of a second, as in a public table of H100
# (docs/log.md). No slope of the default, half a millisecond, leads there.
STALLED_SEND_S = 0.25
# Plans whose slopes are worked out at once.
MAX_SLOPED = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Plans as the posterior sees them, row by row."""

    # Plans x features, in units of length.
    features: Matrix
    # Plans x constants: derivatives of log_step and log_peak by the constants' logarithms, times a factor of the
    # constants' covariance, so that the product of two rows is the covariance that the constants' doubt gives two
    # plans; no columns where they were left out.
    step_slopes: Matrix
    peak_slopes: Matrix
    # Logarithm of the expected seconds per token; the same where transfers between stages stall.
    log_step: FloatColumn
    log_stalled: FloatColumn
    # Logarithm of the expected bytes at the fullest rank.
    log_peak: FloatColumn
    # As log_step, if all plans reached the same share of the peak FLOP/s.
    log_ideal: FloatColumn
    # Logarithm of the tokens of a step, and of the bytes that a rank can use.
    log_tokens: FloatColumn
    log_capacity: FloatColumn
    # 0 for the task's own campaign, then one number for each earlier campaign.
    campaign: FloatColumn

    def __len__(self) -> int:
        return len(self.log_step)

    def take(self, index: npt.NDArray[np.integer] | slice) -> Rows:
        return Rows(*(getattr(self, name)[index] for name in Rows.__slots__))


def stack(parts: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in Rows.__slots__))


def rows_of(
    training: Training,
    columns: Columns,
    campaign: int = 0,
    *,
    calibration: Calibration = UNCALIBRATED,
    sloped: bool = True,
) -> Rows:
    """The prior of these plans; with a usual speed where one of the cluster is unknown. sloped False: none
    has slopes, which saves most of the work and of the memory. calibration: its covariance is positive definite."""
    count = len(columns["tp"])
    training = with_usual_speeds(training)
    model, devices = training.model, training.cluster.devices
    sequences = columns["micro_batch_size"] * columns["grad_accum_steps"] * columns["dp"]
    tokens = np.log(sequences * float(model.seq_len))
    peak = training.cluster.device.peak_flops[training.framework.dtype]
    ideal = np.full(count, log(model.flops_per_token / devices / (USUAL_SHARE * peak)))
    constants, doubt = calibration.constants, np.linalg.cholesky(calibration.covariance)
    flat = np.zeros((count, 0))
    stages = [np.asarray(columns["zero_stage"] >= stage, dtype=np.float64) for stage in (1, 2, 3)]
    choices = [choice * PER_CHOICE for choice in (*stages, *(columns[name] for name in CHOICES))]
    factors = [np.log2(columns[name]) * PER_FACTOR for name in FACTORS]
    scales = [log2(devices), log2(model.parameters), log2(model.seq_len)]
    features = [np.stack([*factors, *choices], axis=1), np.tile(np.array(scales) * PER_SCALE, (count, 1))]
    return Rows(
        features=np.concatenate(features, axis=1),
        step_slopes=slopes(log_step, training, columns, constants, TIME_CONSTANTS) @ doubt if sloped else flat,
        peak_slopes=slopes(log_peak, training, columns, constants, MEMORY_CONSTANTS) @ doubt if sloped else flat,
        log_step=log_step(training, columns, constants) - tokens,
        log_stalled=log_step(training, columns, replace(constants, send_overhead_s=STALLED_SEND_S)) - tokens,
        log_peak=log_peak(training, columns, constants),
        log_ideal=ideal,
        log_tokens=tokens,
        log_capacity=np.full(count, log(usable_bytes(training.cluster))),
        campaign=np.full(count, float(campaign)),
    )


# As `rows_of`.
RowsOf = Callable[..., Rows]


class Catalogue:
    """The physics' rows of one task's legal plans; with slopes where there are at most MAX_SLOPED. All that a search
    keeps between its asks, since the task alone determines it."""

    def __init__(self, task: Task, rows_of: RowsOf) -> None:
        self.task = task
        self._rows_of = rows_of
        self.complete = len(task.space) <= MAX_SLOPED
        self.legal = rows_of(task.training, task.space.columns, calibration=task.calibration, sloped=self.complete)

    def unseen(self, plans: Sequence[Plan]) -> npt.NDArray[np.int64]:
        """The positions in the space of all but these plans."""
        free = np.ones(len(self.task.space), dtype=np.bool_)
        free[[found for plan in plans if (found := self.task.space.find(plan)) is not None]] = False
        return np.flatnonzero(free)

    def sloped(self, index: npt.NDArray[np.int64]) -> Rows:
        if self.complete:
            return self.legal.take(index)
        columns = columns_at(self.task.space.columns, index)
        return self._rows_of(self.task.training, columns, calibration=self.task.calibration)

    def rows(self, plans: Sequence[Plan], campaign: int = 0) -> Rows:
        """The rows of any plans, with their slopes. campaign: 0 for the task's own, 1 for the first of its past."""
        if self.complete and not campaign:
            found = [self.task.space.find(plan) for plan in plans]
            if None not in found:
                return self.legal.take(np.array(found, dtype=np.int64))
        training = self.task.past[campaign - 1].training if campaign else self.task.training
        return self._rows_of(training, columns_of(plans), campaign, calibration=self.task.calibration)
