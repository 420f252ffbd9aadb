"""What plans should cost: expected memory and step time by part, and how sure they are, for whole columns at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp

import numpy as np
import numpy.typing as npt

from search_spaces.calibration import UNCALIBRATED, Calibration
from search_spaces.columns import Columns, FloatColumn
from search_spaces.constants import CONSTANTS, Constants
from search_spaces.estimates import Estimates, MemoryEstimate, TimeEstimate, Training
from search_spaces.memory import memory_parts
from search_spaces.timing import time_parts

# Half the step of the central difference in a constant's logarithm.
STEP = 0.02


def estimate(training: Training, columns: Columns, calibration: Calibration = UNCALIBRATED) -> Estimates:
    """Memory and step time of every plan, with the spread that the calibration leaves.

    The spread has two sources: what the formulas get wrong from plan to plan, and the constants' own uncertainty, to
    first order in their logarithms.
    """
    constants = calibration.constants
    memory = memory_parts(training, columns, constants)
    time = time_parts(training, columns, constants)
    time_slopes = slopes(lambda at: log_step(training, columns, at), constants)
    memory_slopes = slopes(lambda at: log_peak(training, columns, at), constants)
    return Estimates(
        training,
        columns,
        MemoryEstimate(memory, _spread(memory_slopes, calibration.covariance, calibration.memory_log_sd)),
        TimeEstimate(time, _spread(time_slopes, calibration.covariance, calibration.time_log_sd)),
    )


def log_step(training: Training, columns: Columns, constants: Constants) -> FloatColumn:
    """The logarithm of the expected seconds per step."""
    logs: FloatColumn = np.log(np.sum(list(time_parts(training, columns, constants).values()), axis=0))
    return logs


def log_peak(training: Training, columns: Columns, constants: Constants) -> FloatColumn:
    """The logarithm of the expected bytes at the most loaded rank."""
    logs: FloatColumn = np.log(np.sum(list(memory_parts(training, columns, constants).values()), axis=0))
    return logs


def slopes(function: Callable[[Constants], FloatColumn], constants: Constants) -> npt.NDArray[np.float64]:
    """Derivatives of the columns by the logarithm of each constant: plans x constants, by central differences."""
    steps = []
    for name in CONSTANTS:
        value = getattr(constants, name)
        up, down = (function(replace(constants, **{name: value * exp(sign * STEP)})) for sign in (1, -1))
        steps.append((up - down) / (2 * STEP))
    return np.stack(steps, axis=1)


def _spread(slope: npt.NDArray[np.float64], covariance: npt.NDArray[np.float64], noise: float) -> FloatColumn:
    variance: FloatColumn = np.einsum("ij,jk,ik->i", slope, covariance, slope) + noise**2
    return np.sqrt(variance)
