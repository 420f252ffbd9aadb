"""Calibration of a cluster: the constants of the physics, their uncertainty, and the noise around the formulas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.checks import Checks
from meshtune.search_spaces.columns import BoolColumn, FloatColumn
from meshtune.search_spaces.physics.constants import CONSTANTS, DEFAULTS, PRIOR_LOG_SD, Constants

# Beyond the constants: what the formulas get wrong from plan to plan, before anything is measured.
PRIOR_TIME_LOG_SD = 0.15
PRIOR_MEMORY_LOG_SD = 0.12


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
class Calibration:
    """The constants, the covariance of their logarithms (in the order of CONSTANTS), and the standard deviations of
    log(real / expected) around the formulas. times, memories, ooms: how many of each were learnt from."""

    constants: Constants
    covariance: npt.NDArray[np.float64]
    time_log_sd: float = PRIOR_TIME_LOG_SD
    memory_log_sd: float = PRIOR_MEMORY_LOG_SD
    times: int = 0
    memories: int = 0
    ooms: int = 0

    def log_sd(self, name: str) -> float:
        """The standard deviation of the logarithm of one constant."""
        return float(np.sqrt(self.covariance[CONSTANTS.index(name), CONSTANTS.index(name)]))


UNCALIBRATED = Calibration(DEFAULTS, np.diag([PRIOR_LOG_SD[name] ** 2 for name in CONSTANTS]))
