"""STUB, being written."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.calibration import UNCALIBRATED, Calibration, Measured
from search_spaces.estimates import Estimates


def calibrate(observed: Sequence[tuple[Estimates, Measured]], prior: Calibration = UNCALIBRATED) -> Calibration:
    """The calibration after these measurements, of one cluster (several models and sizes of it may be mixed).

    Works from no measurement up: then it is the prior.
    """
    return prior
