"""The whole estimate: slopes by the constants, all variants at once, and the spread that a calibration leaves."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import columns_of, rows
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import (
    CONSTANTS,
    DEFAULTS,
    MEMORY_CONSTANTS,
    TIME_CONSTANTS,
    UNCALIBRATED,
)
from meshtune.search_spaces.physics.estimate import (
    estimate,
    estimate_memory,
    estimate_time,
    log_peak,
    log_step,
    slopes,
)
from meshtune.search_spaces.physics.framework_profiles import NANOTRON
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan

MODEL = ModelSpec(name="llama", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=32768, seq_len=4096)
DEVICE = DeviceSpec(
    name="any",
    kind="cuda",
    memory_bytes=80 * 2**30,
    peak_flops={"bfloat16": 312e12},
    memory_bandwidth_bytes_per_s=2e12,
)
CLUSTER = ClusterSpec(
    name="any",
    nodes=4,
    devices_per_node=8,
    device=DEVICE,
    node_link=LinkSpec(latency_s=3e-6, bandwidth_bytes_per_s=300e9),
    network_link=LinkSpec(latency_s=14e-6, bandwidth_bytes_per_s=25e9),
)
# Every constant counts for this one.
TRAINING = Training(MODEL, CLUSTER, replace(NANOTRON, overlapped_gradients=True))
COLUMNS = columns_of(
    [
        Plan(dp=32, micro_batch_size=2, grad_accum_steps=4),
        Plan(tp=8, dp=4, grad_accum_steps=8, zero_stage=1),
        Plan(tp=2, pp=4, dp=4, grad_accum_steps=8, recompute="full"),
        Plan(tp=4, pp=2, dp=4, grad_accum_steps=8, recompute="selective", sequence_parallel=False),
        Plan(dp=16, cp=2, grad_accum_steps=4, zero_stage=3),
    ]
)


@pytest.mark.parametrize(("logs", "names"), [(log_step, TIME_CONSTANTS), (log_peak, MEMORY_CONSTANTS)])
def test_slopes_are_differences_by_one_constant_after_the_other(logs, names):
    found = slopes(logs, TRAINING, COLUMNS, DEFAULTS, names)
    assert found.shape == (5, len(CONSTANTS))
    for place, name in enumerate(CONSTANTS):
        up, down = (replace(DEFAULTS, **{name: getattr(DEFAULTS, name) * exp(by)}) for by in (1e-4, -1e-4))
        expected = (logs(TRAINING, COLUMNS, up) - logs(TRAINING, COLUMNS, down)) / 2e-4
        assert found[:, place] == pytest.approx(expected if name in names else np.zeros(5), abs=2e-3)


def test_many_plans_get_the_answers_that_each_gets_alone():
    whole = estimate(TRAINING, COLUMNS)
    for row in range(5):
        alone = estimate(TRAINING, rows(COLUMNS, slice(row, row + 1)))
        for one, all_of_them in ((alone.time, whole.time), (alone.memory, whole.memory)):
            assert one.log_sd[0] == pytest.approx(all_of_them.log_sd[row], rel=1e-12)
            assert {part: column[0] for part, column in one.parts.items()} == {
                part: column[row] for part, column in all_of_them.parts.items()
            }
        assert alone.fits[0] == pytest.approx(whole.fits[row], rel=1e-12)
        assert alone.tokens_per_s[0] == pytest.approx(whole.tokens_per_s[row], rel=1e-12)


def test_the_spread_grows_with_the_covariance_and_never_falls_below_the_scatter():
    certain, doubtful = (replace(UNCALIBRATED, covariance=UNCALIBRATED.covariance * by) for by in (0.0, 4.0))
    for estimated, scatter in (
        (estimate_time, UNCALIBRATED.time_log_sd),
        (estimate_memory, UNCALIBRATED.memory_log_sd),
    ):
        none, usual, large = (
            estimated(TRAINING, COLUMNS, calibration).log_sd for calibration in (certain, UNCALIBRATED, doubtful)
        )
        assert none == pytest.approx(np.full(5, scatter))
        assert (usual > none).all()
        assert large**2 - scatter**2 == pytest.approx(4 * (usual**2 - scatter**2))
