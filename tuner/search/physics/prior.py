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

from meshtune.search_spaces.columns import RATIOS, Columns, FloatColumn
from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.physics.constants import (
    MEMORY_CONSTANTS,
    TIME_CONSTANTS,
    UNCALIBRATED,
    Calibration,
    Constants,
)
from meshtune.search_spaces.physics.estimate import log_peak, log_step, slopes
from meshtune.search_spaces.physics.memory import MemoryPart, memory_parts
from meshtune.search_spaces.physics.rollout import engine_of
from meshtune.search_spaces.physics.training import Training, usable_bytes, with_usual_speeds
from meshtune.search_spaces.plan import AXES

Matrix = npt.NDArray[np.float64]

# How far apart two values are for the posterior, in units of a length scale of 1. Degrees and sizes count in factors
# of 2; what changes the code that runs (a stage of ZeRO, recomputation) is further apart. The scales of an earlier
# campaign count less: the physics carries most of what they change.
FACTORS = tuple(axis.name for axis in AXES if axis.is_factor)
CHOICES = tuple(axis.name for axis in AXES if not (axis.is_factor or axis.name in ("zero_stage", *RATIOS)))
PER_FACTOR = 1 / 2
PER_CHOICE = 1 / 1.5
PER_SCALE = 1 / 4
# Of the peak, reached by plans of which nothing is known.
USUAL_SHARE = 0.4
# Expected of any plan where the physics is not trusted, or is not known: a peak of this share of what a rank can use.
UNKNOWN_PEAK = 0.7
ANY_SPEED = 4.0  # of a program whose model is unknown: the standard deviation of log(seconds per sample)
# A network that retries sends: every transfer between stages takes a quarter of a second, as in a public table of H100
# (benchmarks/log.md). No slope of the default, half a millisecond, leads there.
STALLED_SEND_S = 0.25


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
    # log_step and its slopes at refitted constants, and what it gained by these slopes on the way there (`refit`).
    log_refitted: FloatColumn
    refitted_slopes: Matrix
    log_gained: FloatColumn
    # Logarithm of the expected bytes at the fullest rank.
    log_peak: FloatColumn
    # The part of it that an inference engine's is, the fuller phase with it; below 0 where it lacks room to start.
    engine: FloatColumn
    # As log_step, if all plans reached the same share of the peak FLOP/s.
    log_ideal: FloatColumn
    # Logarithm of the tokens of a step, of each device where times are per device.
    log_tokens: FloatColumn
    # Of the bytes that a rank can use.
    log_capacity: FloatColumn
    # 0 for the task's own campaign, then one number for each earlier campaign.
    campaign: FloatColumn
    # Logarithm of the devices.
    log_devices: FloatColumn
    # Plans x features of their knobs' values, for time and for the peak, as `knob_effects` attaches them; and the
    # codes of the values beside the defaults, else 0. No columns where a space has no knobs.
    knobs: Matrix
    peak_knobs: Matrix
    changed: Codes

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
    per_device: bool = False,
    refitted: tuple[Rows, FloatColumn] | None = None,
) -> Rows:
    """The prior of these plans without their knobs; with a usual speed where one of the cluster is unknown; all alike
    without a model. sloped False: none has slopes, which saves most of the work and of the memory. calibration: its
    covariance is positive definite. per_device: times are of all devices together, so that plans of different sizes
    compare by the work of a device. refitted: the plans' rows, and how far away their refitted times are taken
    (`Calibration.away`), with slopes there where sloped."""
    count = len(columns["tp"])
    training = with_usual_speeds(training)
    doubt = np.linalg.cholesky(calibration.covariance)
    if refitted is not None:
        (rows, away), at = refitted, calibration.away(refitted[1])
        slope = slopes(log_step, training, columns, at, TIME_CONSTANTS) @ doubt if sloped else rows.refitted_slopes
        log_refitted, gained = log_step(training, columns, at) - rows.log_tokens, slope @ away[: slope.shape[1]]
        return replace(rows, log_refitted=log_refitted, refitted_slopes=slope, log_gained=gained)
    model = training.model
    devices = np.log(columns["tp"] * columns["pp"] * columns["cp"] * columns["dp"].astype(np.float64))
    sequences = columns["micro_batch_size"] * columns["grad_accum_steps"] * columns["dp"]
    tokens = np.log(sequences * float(model.seq_len)) - (devices if per_device else 0.0)
    peak = training.cluster.device.peak_flops[training.framework.dtype]
    ideal = log(model.flops_per_token / (USUAL_SHARE * peak)) if model.known else 0.0
    alike = np.asarray(ideal - (0.0 if per_device else devices) + np.zeros(count))
    constants = calibration.constants
    flat = np.zeros((count, 0))
    stages = [np.asarray(columns["zero_stage"] >= stage, dtype=np.float64) for stage in (1, 2, 3)]
    choices = [choice * PER_CHOICE for choice in (*stages, *(columns[name] for name in CHOICES))]
    sizes = [*(columns[name] for name in FACTORS), *(ratio(columns) for ratio in RATIOS.values())]
    factors = [np.log2(size) * PER_FACTOR for size in sizes]
    scales = [devices / log(2.0), *(np.full(count, log2(size)) for size in (model.parameters, model.seq_len))]
    features = [np.stack([*factors, *choices], axis=1), np.stack(scales, axis=1) * PER_SCALE]
    without = Rows(
        features=np.concatenate(features, axis=1),
        step_slopes=np.full((count, 1), ANY_SPEED),
        peak_slopes=flat,
        log_step=alike,
        log_stalled=alike,
        log_refitted=alike,
        refitted_slopes=flat,
        log_gained=np.zeros(count),
        log_peak=np.full(count, log(UNKNOWN_PEAK * usable_bytes(training))),
        engine=np.zeros(count),
        log_ideal=alike,
        log_tokens=tokens,
        log_capacity=np.full(count, log(usable_bytes(training))),
        campaign=np.full(count, float(campaign)),
        log_devices=devices,
        knobs=flat,
        peak_knobs=flat,
        changed=np.zeros((count, 0), dtype=np.int64),
    )
    if not model.known:
        return without
    slope = slopes(log_step, training, columns, constants, TIME_CONSTANTS) @ doubt if sloped else flat
    step = log_step(training, columns, constants) - tokens
    peak_bytes, engine = log_peak_of(training, columns, constants)
    return replace(
        without,
        engine=engine,
        step_slopes=slope,
        refitted_slopes=slope,
        log_refitted=step,
        peak_slopes=slopes(log_peak, training, columns, constants, MEMORY_CONSTANTS) @ doubt if sloped else flat,
        log_step=step,
        log_stalled=log_step(training, columns, replace(constants, send_overhead_s=STALLED_SEND_S)) - tokens,
        log_peak=peak_bytes,
    )


def log_peak_of(training: Training, columns: Columns, constants: Constants) -> tuple[FloatColumn, FloatColumn]:
    """`Rows.log_peak` and `Rows.engine`."""
    parts = memory_parts(training, columns, constants)
    total = np.sum(list(parts.values()), axis=0)
    lacks = training.recipe.rollout is not None and engine_of(training, training.recipe.rollout).short > 0
    return np.log(total), parts.get(MemoryPart.ENGINE, np.zeros_like(total)) / total * (-1 if lacks else 1)


# As `rows_of`.
RowsOf = Callable[..., Rows]
