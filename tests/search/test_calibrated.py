"""Searches start from the task's calibration: its constants, their covariance, and given hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshtune.search_spaces.physics.constants import CONSTANTS, DEFAULTS, TIME_CONSTANTS, UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import log_peak, log_step, slopes
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.library.memory_guard import MemoryGuard
from meshtune.tuner.search.physics.prior import rows_of
from meshtune.tuner.search.physics.search import PhysicsSearch
from meshtune.tuner.search.physics.speed import HYPOTHESES, Expects
from meshtune.tuner.search.physics.weighing import Hypotheses


@pytest.fixture(scope="module")
def wide(make: Callable[[int, int | None, Bounds], Space]) -> Space:
    return make(4, 128, Bounds(micro_batch_size=(1, 2, 4)))


# Between nodes data moves sixty times slower than expected: few replicas, which exchange gradients, are best.
SLOW_NETWORK = replace(UNCALIBRATED, constants=replace(DEFAULTS, network_efficiency=DEFAULTS.network_efficiency / 60))


def test_the_first_plan_follows_the_tasks_constants(wide: Space, task: Callable[..., Task]) -> None:
    replicas = []
    for calibration in (UNCALIBRATED, SLOW_NETWORK):
        (first,) = PhysicsSearch(0).ask(task(wide, calibration=calibration), [], 1).plans
        rows = rows_of(task(wide).training, wide.columns, calibration=calibration)
        tokens = log_step(task(wide).training, wide.columns, calibration.constants) - rows.log_tokens
        assert np.allclose(rows.log_step, tokens)
        replicas.append(first.dp)
    assert replicas[1] < replicas[0]


def test_correlated_constants_give_plans_the_covariance_that_they_imply(wide: Space, task: Callable[..., Task]) -> None:
    mixed = np.random.default_rng(0).normal(size=(len(CONSTANTS), len(CONSTANTS)))
    calibration = Calibration(DEFAULTS, UNCALIBRATED.covariance + 0.01 * mixed @ mixed.T)
    training = task(wide).training
    rows = rows_of(training, wide.columns, calibration=calibration)
    slope = slopes(log_step, training, wide.columns, DEFAULTS, TIME_CONSTANTS)
    assert np.allclose(rows.step_slopes @ rows.step_slopes.T, slope @ calibration.covariance @ slope.T)


def test_a_search_takes_hypotheses(wide: Space, task: Callable[..., Task]) -> None:
    """Without those that trust the physics of speed, memory alone decides, and many plans are alike."""
    blind = Hypotheses(speeds=[one for one in HYPOTHESES if one.expects is Expects.ALIKE])
    trusting, blindly = (
        {PhysicsSearch(seed, hypotheses=one).ask(task(wide), [], 1).plans[0].key for seed in range(5)}
        for one in (Hypotheses(), blind)
    )
    assert len(trusting) < len(blindly)


def test_the_memory_guard_starts_from_the_tasks_calibration(wide: Space, task: Callable[..., Task]) -> None:
    training, everything = task(wide).training, np.arange(len(wide))
    thirsty = replace(UNCALIBRATED, constants=replace(DEFAULTS, memory_factor=3.0))
    likely, fewer = (
        MemoryGuard().believe(task(wide, calibration=calibration), ()).in_turn(everything, 0.5)[0]
        for calibration in (UNCALIBRATED, thirsty)
    )
    peaks = np.exp(log_peak(training, wide.columns, thirsty.constants))
    assert set(fewer.tolist()) < set(likely.tolist())
    assert np.all(peaks[fewer] < training.cluster.device.memory_bytes)
