"""What is shown of stored calibrations: by the REST API and by `meshtune calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from meshtune.search_spaces.physics.constants import CONSTANTS, DEFAULTS, PRIOR_LOG_SD
from meshtune.tuner.campaign.calibration import StoredCalibration
from meshtune.tuner.results.quantities import rfc3339
from meshtune.tuner.results.views import view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantView:
    """A constant of the physics. log_sd: standard deviation of its logarithm; default and default_log_sd: before any
    measurement. What the trials could not see has the default's."""

    name: str
    value: float
    log_sd: float
    default: float
    default_log_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationView:
    """What a calibration campaign measured of one device under one training code. campaign: its id, and the
    calibration's. program: the user's that ran, empty where the framework says all. version: of the framework; empty
    where no trial named it. model, cluster, devices: measured with. trials: measured ones. time_log_sd, memory_log_sd:
    standard deviations of log(measured / expected), from plan to plan. times, memories, ooms: numbers of step times,
    memory peaks and out-of-memory verdicts learnt from. owner: the name of the token that created the campaign, empty
    for the command line; project: empty for none."""

    campaign: str
    created_at: datetime
    device: str
    workload: str
    program: str
    framework: str
    dtype: str
    version: str
    model: str
    cluster: str
    devices: int
    trials: int
    times: int
    memories: int
    ooms: int
    time_log_sd: float
    memory_log_sd: float
    constants: tuple[ConstantView, ...]
    owner: str
    project: str


def calibration_view(stored: StoredCalibration) -> CalibrationView:
    fit = stored.calibration
    return view_of(
        CalibrationView,
        stored,
        fit,
        created_at=rfc3339(stored.created_at),
        constants=tuple(
            ConstantView(
                name=name,
                value=getattr(fit.constants, name),
                log_sd=fit.log_sd(name),
                default=getattr(DEFAULTS, name),
                default_log_sd=PRIOR_LOG_SD[name],
            )
            for name in CONSTANTS
        ),
    )
