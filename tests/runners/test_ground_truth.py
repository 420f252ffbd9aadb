"""The hidden cluster is one cluster per seed: like the physics, not the same, and noisy from run to run."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from meshtune.runners.base import JobState
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.simulated import Code, SimulatedJob
from meshtune.runners.schedulers.ground_truth import HiddenClusterOptions, hidden_constants, run, truth
from meshtune.runners.step_breakdown import Part
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import log_step
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan

MODEL = ModelSpec(name="m", layers=32, hidden=4096, heads=32, ffn=16384, vocab=32000, seq_len=2048)
DEVICE = DeviceSpec(
    name="d",
    kind=DeviceKind.CUDA,
    memory_bytes=80 * 2**30,
    peak_flops={"float16": 300e12, "bfloat16": 300e12, "float32": 20e12},
    memory_bandwidth_bytes_per_s=2e12,
)
CLUSTER = ClusterSpec(
    name="toy",
    nodes=8,
    devices_per_node=8,
    device=DEVICE,
    node_link=LinkSpec(latency_s=3e-6, bandwidth_bytes_per_s=300e9),
    network_link=LinkSpec(latency_s=14e-6, bandwidth_bytes_per_s=12e9),
)
PLAN = Plan(tp=8, pp=2, dp=4, micro_batch_size=1, grad_accum_steps=64, zero_stage=1)
JOB = SimulatedJob(model=MODEL, plan=PLAN, cluster=CLUSTER)
QUIET = HiddenClusterOptions(seed=7, noise=0.0, fault_rate=0.0)
NOISY = replace(QUIET, noise=0.02)
LONG_S = 1e6


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_plans_is_like_the_physics_says_and_not_the_same(seed):
    plans = [  # of 256 sequences on 64 devices
        Plan(tp=tp, pp=pp, dp=64 // tp // pp, micro_batch_size=mbs, grad_accum_steps=256 * tp * pp // 64 // mbs)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8)
        for mbs in (1, 2, 4)
        if 256 * tp * pp // 64 >= mbs
    ]
    expected = log_step(JOB.training, columns_of(plans), DEFAULTS)
    true = np.array([truth(JOB.training, plan, seed).step_s for plan in plans])
    assert 0.5 < np.corrcoef(*(np.argsort(np.argsort(steps)) for steps in (expected, true)))[0, 1] < 0.999


def test_a_seed_is_one_cluster_and_another_seed_another():
    assert truth(JOB.training, PLAN, 7) == truth(JOB.training, PLAN, 7)
    assert truth(JOB.training, PLAN, 7).step_s != truth(JOB.training, PLAN, 8).step_s
    assert truth(JOB.training, PLAN, 7).peak_bytes != truth(JOB.training, PLAN, 8).peak_bytes
    assert hidden_constants(7) == hidden_constants(7) != hidden_constants(8)


def test_a_run_without_noise_measures_the_truth():
    ending = run(JOB, "a", LONG_S, QUIET)
    true = truth(JOB.training, PLAN, 7)
    assert (ending.state, ending.exit_code) == (JobState.SUCCEEDED, 0)
    measured = ending.outcome.measurement
    assert measured.step_times_s == pytest.approx((true.step_s,) * 6)
    assert measured.peak_memory_bytes == (round(true.peak_bytes),)
    assert (measured.devices, measured.tokens_per_step) == (64, 256 * 2048)
    assert measured.peak_flops_per_device == 300e12
    assert ending.outcome.reason.startswith("simulated: ")
    # Another seed is another cluster, which measurements tell apart as they do real software.
    assert measured.software == {"hidden cluster": "7"}
    (parts,) = measured.profile.parts_s
    assert set(parts) == set(map(str, Part))
    assert sum(parts.values()) == pytest.approx(measured.profile.step_time_s)


def test_repeats_differ_by_the_noise_and_the_same_run_does_not():
    medians = [run(JOB, f"again-{n}", LONG_S, NOISY).outcome.measurement.step_time_s for n in range(20)]
    assert len(set(medians)) == 20
    assert 0.01 < np.std(np.log(medians)) < 0.04
    assert median(medians) == pytest.approx(truth(JOB.training, PLAN, 7).step_s, rel=0.02)
    assert run(JOB, "again-0", LONG_S, NOISY) == run(JOB, "again-0", LONG_S, NOISY)


def test_the_border_of_memory_is_where_the_truth_is():
    true = truth(JOB.training, PLAN, 7)
    for memory_bytes, verdict in ((true.peak_bytes * 1.001, Verdict.OK), (true.peak_bytes * 0.999, Verdict.OOM)):
        device = replace(DEVICE, memory_bytes=int(memory_bytes))
        ending = run(replace(JOB, cluster=replace(CLUSTER, device=device)), "a", LONG_S, QUIET)
        assert ending.outcome.verdict is verdict
    small = replace(CLUSTER, device=replace(DEVICE, memory_bytes=2**30))
    outcome = run(replace(JOB, cluster=small), "a", LONG_S, NOISY).outcome
    assert (outcome.verdict, outcome.phase, outcome.measurement) == (Verdict.OOM, "init", None)
    assert outcome.reason == "simulated: out of memory in init on a device of 1.0 GiB"


def test_nodes_fail_as_often_as_told_and_the_failure_names_one():
    conditions = replace(NOISY, fault_rate=0.2)
    endings = [run(JOB, f"job-{n}", LONG_S, conditions) for n in range(120)]
    lost = [ending for ending in endings if ending.state is JobState.LOST]
    assert 10 < len(lost) < 40
    assert all(ending.outcome is None and 0 <= ending.share < 1 for ending in lost)
    nodes = {ending.reason for ending in lost}
    assert nodes == {f"simulated: node toy-{node:05d} failed" for node in range(8)}
    assert not any(run(JOB, f"job-{n}", LONG_S, NOISY).state is JobState.LOST for n in range(10))


def test_what_is_surely_slower_than_the_incumbent_is_pruned_and_measures_nothing():
    step_s = truth(JOB.training, PLAN, 7).step_s
    unsteady = replace(NOISY, noise=0.08)
    pruned = run(replace(JOB, incumbent_step_time_s=0.5 * step_s), "a", LONG_S, unsteady).outcome
    assert (pruned.verdict, pruned.measurement) == (Verdict.PRUNED, None)
    assert len(pruned.partial.step_times_s) < 30
    assert run(replace(JOB, incumbent_step_time_s=2 * step_s), "a", LONG_S, unsteady).outcome.verdict is Verdict.OK


@pytest.mark.parametrize("code", Code)
def test_every_training_code_can_be_simulated(code):
    training = Training(MODEL, CLUSTER, code.framework)
    assert 0 < truth(training, PLAN, 1).step_s < np.inf
    assert 0 < truth(training, PLAN, 1).peak_bytes < np.inf
