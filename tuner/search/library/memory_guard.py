"""The guard of the searches that know no physics: plans that are expected not to fit into memory come last.

P(fits) is the physical model's, calibrated by the campaign's own peaks and out-of-memory verdicts. What earlier
campaigns learnt is left out, and so are crashes, which need not be memory's doing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import columns_of, rows
from meshtune.search_spaces.physics.calibration import UNCALIBRATED, Calibration, Measured
from meshtune.search_spaces.physics.estimate import estimate, estimate_memory
from meshtune.search_spaces.physics.estimates import Training, usable_bytes
from meshtune.search_spaces.physics.fitting import calibrate
from meshtune.search_spaces.physics.unknown_speeds import missing
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.encoding import IntArray


def in_turn(task: Task, seen: Sequence[Observation], unseen: IntArray, guard: float) -> list[IntArray]:
    """The positions `unseen` in the turns they are to be proposed in: those of plans that fit with at least the
    probability `guard`, then the others. A guard of 0 holds nothing back."""
    if guard == 0.0:
        return [unseen]
    training = task.training
    memory = estimate_memory(training, rows(task.space.columns, unseen), _learnt(training, seen))
    likely = memory.fits(usable_bytes(training.cluster)) >= guard
    return [unseen[likely], unseen[~likely]]


def _learnt(training: Training, seen: Sequence[Observation]) -> Calibration:
    """The calibration of memory by the trials; the prior where a speed is missing that estimates of times need."""
    teaching = [one for one in seen if one.verdict is Verdict.OOM or one.peak_bytes is not None]
    if not teaching or missing(training):
        return UNCALIBRATED
    measured = Measured(
        step_time_s=np.full(len(teaching), np.nan),
        # The peak of a plan that ran out of memory is only known to lie above the device's.
        peak_memory_bytes=np.array(
            [np.nan if one.verdict is Verdict.OOM else one.peak_bytes for one in teaching], dtype=np.float64
        ),
        oom=np.array([one.verdict is Verdict.OOM for one in teaching], dtype=np.bool_),
    )
    return calibrate([(estimate(training, columns_of([one.plan for one in teaching])), measured)])
