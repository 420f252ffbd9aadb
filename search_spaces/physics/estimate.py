"""Expected memory and step time of plans, by part and with uncertainty, for whole columns at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import Columns, FloatColumn, rows
from meshtune.search_spaces.physics.constants import (
    CONSTANTS,
    MEMORY_CONSTANTS,
    TIME_CONSTANTS,
    UNCALIBRATED,
    Calibration,
    Constants,
    stacked,
)
from meshtune.search_spaces.physics.memory import MemoryPart, Phase, memory_parts, parts_by_phase
from meshtune.search_spaces.physics.recipes import flops_per_token
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training, usable_bytes


def _total(parts: Mapping[Any, FloatColumn]) -> FloatColumn:
    """The expected peak or step: the sum of its parts."""
    total: FloatColumn = np.sum(list(parts.values()), axis=0)
    return total


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by part of the most loaded rank. log_sd: standard deviation of log(real peak / peak_bytes), per plan."""

    parts: Mapping[MemoryPart, FloatColumn]
    log_sd: FloatColumn

    @property
    def peak_bytes(self) -> FloatColumn:
        return _total(self.parts)

    def fits(self, memory_bytes: float) -> FloatColumn:
        return heavy_cdf(np.log(memory_bytes / self.peak_bytes) / self.log_sd)


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """Seconds per optimizer step by part. log_sd: standard deviation of log(real step / step_s), per plan."""

    parts: Mapping[TimePart, FloatColumn]
    log_sd: FloatColumn

    @property
    def step_s(self) -> FloatColumn:
        return _total(self.parts)


@dataclass(frozen=True, slots=True)
class Estimates:
    """The costs of plans (rows of `columns`) of one training."""

    training: Training
    columns: Columns
    memory: MemoryEstimate
    time: TimeEstimate

    @property
    def fits(self) -> FloatColumn:
        return self.memory.fits(usable_bytes(self.training))

    @property
    def tokens_per_s(self) -> FloatColumn:
        c = self.columns
        recipe = self.training.recipe
        rows = c["micro_batch_size"] * c["grad_accum_steps"] * c["dp"] * recipe.rows_per_sample
        rows = rows * (recipe.rollout.updates if recipe.rollout else 1)
        return rows * recipe.mean_row(self.training.model.seq_len) / self.time.step_s

    @property
    def model_flops_per_device(self) -> FloatColumn:
        """Model FLOP/s per device, recomputation left out."""
        c, training = self.columns, self.training
        flops = flops_per_token(training.model, training.recipe)
        return self.tokens_per_s * flops / (c["tp"] * c["pp"] * c["cp"] * c["dp"])


def heavy_cdf(value: FloatColumn) -> FloatColumn:
    """The distribution function of Student's t with 3 degrees of freedom, in closed form.

    Peaks of real runs scatter with tails that are heavier than normal (docs/explanation/physics-memory.md).
    """
    scaled = np.asarray(value) / sqrt(3)
    return 0.5 + (scaled / (1 + scaled**2) + np.arctan(scaled)) / pi


Logs = Callable[[Training, Columns, Constants], FloatColumn]
# Of the doubt about memory the share that an engine's has not: what it tries before it starts is judged.
ENGINE_KNOWN = 0.75
# Half the step of the central difference in a constant's logarithm.
STEP = 0.02
# Rows (plans times constants, up and down) evaluated at once: a column of so many stays in a core's cache.
TOGETHER = 20_000


def estimate(training: Training, columns: Columns, calibration: Calibration = UNCALIBRATED) -> Estimates:
    """Memory and step time of every plan, with the spread that the calibration leaves.

    The spread has two sources: what the formulas get wrong from plan to plan, and the constants' own uncertainty, to
    first order in their logarithms.
    """
    memory = estimate_memory(training, columns, calibration)
    return Estimates(training, columns, memory, estimate_time(training, columns, calibration))


def estimate_memory(training: Training, columns: Columns, calibration: Calibration = UNCALIBRATED) -> MemoryEstimate:
    """The memory alone, which no speed of the cluster is needed for. Of several phases that which fits least."""
    found = list(estimate_phases(training, columns, calibration).values())
    least = np.argmin([one.fits(usable_bytes(training)) for one in found], axis=0)
    parts = {part: np.choose(least, [one.parts[part] for one in found]) for part in found[0].parts}
    return MemoryEstimate(parts, np.choose(least, [one.log_sd for one in found]))


def estimate_phases(training: Training, columns: Columns, calibration: Calibration) -> dict[Phase, MemoryEstimate]:
    """Of each phase of `parts_by_phase`."""
    found, constants = {}, calibration.constants
    for phase, parts in parts_by_phase(training, columns, constants).items():
        slope = slopes(partial(log_peak, phase=phase), training, columns, constants, MEMORY_CONSTANTS)
        # The engine's share is set, and a frozen base known to the byte: what is doubted is the rest.
        known = ENGINE_KNOWN * parts.get(MemoryPart.ENGINE, 0.0) / _total(parts)
        spread = _spread(slope, calibration.covariance, calibration.memory_log_sd * (1 - known))
        if training.recipe.adapter is not None:
            spread = spread * (1 - parts[MemoryPart.WEIGHTS] / _total(parts))
        found[phase] = MemoryEstimate(parts, spread)
    return found


def estimate_time(training: Training, columns: Columns, calibration: Calibration = UNCALIBRATED) -> TimeEstimate:
    """The step time alone; every speed that `search_spaces.physics.training` asks for must be known."""
    constants = calibration.constants
    slope = slopes(log_step, training, columns, constants, TIME_CONSTANTS)
    return TimeEstimate(
        time_parts(training, columns, constants), _spread(slope, calibration.covariance, calibration.time_log_sd)
    )


def log_step(training: Training, columns: Columns, constants: Constants) -> FloatColumn:
    """The logarithm of the expected seconds per step."""
    return np.log(_total(time_parts(training, columns, constants)))


def log_peak(training: Training, columns: Columns, constants: Constants, phase: Phase | None = None) -> FloatColumn:
    """The logarithm of the expected bytes at the most loaded rank, in the fullest phase unless one is said."""
    setting = (training, columns, constants)
    return np.log(_total(parts_by_phase(*setting)[phase] if phase else memory_parts(*setting)))


def slopes(
    logs: Logs, training: Training, columns: Columns, constants: Constants, names: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Derivatives of `logs` by the logarithms of the constants: plans x CONSTANTS, by central differences.

    names: the constants that `logs` depends on; for the others the derivative is 0.
    """
    result = np.zeros((len(columns["tp"]), len(CONSTANTS)))
    variants = [
        replace(constants, **{name: getattr(constants, name) * exp(sign * STEP)}) for name in names for sign in (1, -1)
    ]
    most = max(1, TOGETHER // len(variants))
    for first in range(0, len(result), most):
        some = rows(columns, slice(first, first + most))
        plans = len(some["tp"])
        tiled = {name: np.tile(column, len(variants)) for name, column in some.items()}
        values = logs(training, tiled, stacked(variants, plans)).reshape(len(names), 2, plans)
        for name, (up, down) in zip(names, values, strict=True):
            result[first : first + plans, CONSTANTS.index(name)] = (up - down) / (2 * STEP)
    return result


def _spread(slope: npt.NDArray[np.float64], covariance: npt.NDArray[np.float64], noise: Any) -> FloatColumn:
    variance: FloatColumn = np.sum(slope @ covariance * slope, axis=1) + noise**2
    return np.sqrt(variance)
