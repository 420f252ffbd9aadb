"""Calibration on made-up measurements whose truth is known: what it finds, how sure it is, what it withstands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import Capabilities, Columns, SpaceContext, rows
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import (
    CONSTANTS,
    DEFAULTS,
    TIME_CONSTANTS,
    UNCALIBRATED,
    Calibration,
    Constants,
)
from meshtune.search_spaces.physics.estimate import estimate, log_peak, log_step
from meshtune.search_spaces.physics.fitting import Measured, calibrate
from meshtune.search_spaces.physics.framework_profiles import TRAINER_BFLOAT16
from meshtune.search_spaces.physics.training import Training, usable_bytes
from meshtune.search_spaces.space import Bounds, Space

pytestmark = pytest.mark.slow

MODEL = ModelSpec(name="llama", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32768, seq_len=4096)
DEVICE = DeviceSpec(
    name="any",
    kind="cuda",
    memory_bytes=80 * 2**30,
    peak_flops={"bfloat16": 312e12},
    sustained_flops={"bfloat16": 271e12},
    memory_bandwidth_bytes_per_s=2e12,
)
CLUSTER = ClusterSpec(
    name="any",
    nodes=8,
    devices_per_node=8,
    device=DEVICE,
    node_link=LinkSpec(latency_s=3.4e-6, bandwidth_bytes_per_s=300e9),
    network_link=LinkSpec(latency_s=14e-6, bandwidth_bytes_per_s=25e9),
)
TRAINING = Training(MODEL, CLUSTER, TRAINER_BFLOAT16)
BOUNDS = Bounds(zero_stage=(0, 1), recompute=("none", "full"), micro_batch_size=(1, 2, 4))
ABLE = Capabilities(recompute=frozenset({"none", "full"}))
PLANS = Space(BOUNDS, SpaceContext(model=MODEL, cluster=CLUSTER, global_batch_size=512, capabilities=ABLE)).columns
COUNT = len(PLANS["tp"])
# A cluster whose products and network are slower than its data sheet, with a slow pipeline.
TRUTH = replace(DEFAULTS, matmul_efficiency=0.75, network_efficiency=0.3, send_overhead_s=0.003, node_efficiency=0.85)
NOISE = 0.03


def some(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(COUNT)[:count]


def unmeasured(count: int) -> Measured:
    return Measured(np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, dtype=np.bool_))


def timed(index: np.ndarray, truth: Constants = TRUTH, noise: float = NOISE, training: Training = TRAINING) -> tuple:
    """Estimates of these plans, and the steps that the truth would take, give or take."""
    columns = rows(PLANS, index)
    scatter = np.random.default_rng(len(index)).normal(0, noise, len(index))
    step_s = np.exp(log_step(training, columns, truth) + scatter)
    return estimate(training, columns), replace(unmeasured(len(index)), step_time_s=step_s)


def out_of_memory(columns: Columns) -> tuple:
    count = len(columns["tp"])
    return estimate(TRAINING, columns), replace(unmeasured(count), oom=np.ones(count, dtype=np.bool_))


def error(calibration: Calibration, index: np.ndarray, truth: Constants = TRUTH) -> float:
    """The median error of predicted steps."""
    columns = rows(PLANS, index)
    off = log_step(TRAINING, columns, calibration.constants) - log_step(TRAINING, columns, truth)
    return float(np.median(np.abs(off)))


# Times


def test_without_a_measurement_the_prior_comes_back():
    estimates = estimate(TRAINING, rows(PLANS, some(3)))
    for observed in ([], [(estimates, unmeasured(3))]):
        learnt = calibrate(observed)
        assert learnt.constants == DEFAULTS
        assert np.array_equal(learnt.covariance, UNCALIBRATED.covariance)
        assert replace(learnt, constants=DEFAULTS, covariance=UNCALIBRATED.covariance) == UNCALIBRATED


@pytest.mark.parametrize(("count", "most"), [(5, 0.06), (20, 0.035), (200, 0.015)])
def test_more_rows_predict_unseen_plans_better(count, most):
    order = some(COUNT)
    learnt = calibrate([timed(order[:count])])
    assert error(UNCALIBRATED, order[200:]) > 0.15
    assert error(learnt, order[200:]) < most
    assert (learnt.times, learnt.memories, learnt.ooms) == (count, 0, 0)


@pytest.mark.parametrize("factor", [20.0, 0.05])
def test_one_wild_run_of_eight_moves_predictions_by_little(factor):
    estimates, measured = timed(some(8))
    wild = measured.step_time_s.copy()
    wild[3] *= factor
    kept = np.delete(np.arange(8), 3)
    without = calibrate(
        [
            (
                estimate(TRAINING, rows(estimates.columns, kept)),
                replace(unmeasured(7), step_time_s=measured.step_time_s[kept]),
            )
        ]
    )
    among = calibrate([(estimates, replace(measured, step_time_s=wild))])
    moved = log_step(TRAINING, PLANS, among.constants) - log_step(TRAINING, PLANS, without.constants)
    assert np.median(np.abs(moved)) < 0.05


def test_a_network_that_retries_its_sends_is_found_in_five_rows():
    truth = replace(TRUTH, send_overhead_s=0.4)
    piped = np.flatnonzero(PLANS["pp"] > 1)
    order = np.random.default_rng(0).permutation(piped)
    learnt = calibrate([timed(order[:5], truth)])
    assert learnt.constants.send_overhead_s == pytest.approx(0.4, rel=0.3)
    assert error(learnt, order[5:], truth) < 0.1 < error(UNCALIBRATED, order[5:], truth)


# How sure


def test_the_covariance_shrinks_with_rows_and_stays_one():
    places = [CONSTANTS.index(name) for name in TIME_CONSTANTS]
    before = UNCALIBRATED.covariance
    for count in (1, 5, 20, 100):
        learnt = calibrate([timed(some(count))])
        assert learnt.covariance == pytest.approx(learnt.covariance.T, abs=1e-12)
        assert np.linalg.eigvalsh(learnt.covariance).min() > 0
        assert np.linalg.eigvalsh(before - learnt.covariance).min() > -0.02
        assert np.trace(learnt.covariance[np.ix_(places, places)]) < np.trace(before[np.ix_(places, places)])
        before = learnt.covariance


# Memory


def peaks(index: np.ndarray, truth: Constants) -> tuple:
    """Every plan was run: its peak was measured where it fits, else it ran out of memory."""
    columns = rows(PLANS, index)
    real = np.exp(log_peak(TRAINING, columns, truth))
    oom = real > usable_bytes(TRAINING)
    return estimate(TRAINING, columns), replace(
        unmeasured(len(index)), peak_memory_bytes=np.where(oom, np.nan, real), oom=oom
    )


THIRSTY = replace(DEFAULTS, activation_factor=1.25, memory_offset_bytes=1.5e9)


def test_measured_peaks_teach_the_constants_of_memory():
    order = some(COUNT)
    learnt = calibrate([peaks(order[:40], THIRSTY)])
    columns = rows(PLANS, order[40:])
    real = log_peak(TRAINING, columns, THIRSTY)
    before, after = (np.abs(log_peak(TRAINING, columns, c) - real) for c in (DEFAULTS, learnt.constants))
    assert np.median(after) < 0.4 * np.median(before)
    assert learnt.memories + learnt.ooms == 40
    assert min(learnt.memories, learnt.ooms) > 0
    assert learnt.times == 0
    assert learnt.constants.matmul_efficiency == DEFAULTS.matmul_efficiency


def likely_plans() -> Columns:
    """Plans that should just fit."""
    fits = estimate(TRAINING, PLANS).fits
    return rows(PLANS, (fits > 0.6) & (fits < 0.97))


@pytest.mark.parametrize("count", [1, 4, 16])
def test_running_out_of_memory_alone_lowers_the_odds_of_plans_alike(count):
    likely = likely_plans()
    learnt = calibrate([out_of_memory(rows(likely, slice(0, count)))])
    before, after = estimate(TRAINING, likely), estimate(TRAINING, likely, learnt)
    assert learnt.ooms == min(count, len(before.columns["tp"]))
    assert (after.memory.peak_bytes > before.memory.peak_bytes).all()
    assert (after.fits < before.fits).all()
    assert (after.fits > 0).all()


def test_what_cannot_have_been_measured_is_refused_by_row():
    fine, none = np.array([1.0, np.nan]), np.zeros(2, dtype=np.bool_)
    with pytest.raises(InvalidValue, match=r"step_time_s\[0\]: must be positive, not 0.0"):
        Measured(np.array([0.0, 1.0]), fine, none)
    with pytest.raises(InvalidValue, match="peak_memory_bytes: has 1 rows, oom has 2"):
        Measured(fine, fine[:1], none)
