"""Skewed routing has the imbalance that was asked for, and the physics counts the fullest rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from places import cluster

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.activations import expert_load
from meshtune.search_spaces.physics.constants import DEFAULTS, UNCALIBRATED
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.fitting import Measured, calibrate
from meshtune.search_spaces.physics.framework_profiles import TRAINER_BFLOAT16
from meshtune.search_spaces.physics.training import Training, with_usual_speeds
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import Routing, rank_loads, skewed_shares, systematic_edges

MODEL = ModelSpec(name="m", layers=4, hidden=1024, heads=16, ffn=2048, vocab=16384, seq_len=1024, experts=16, top_k=2)


@pytest.mark.parametrize("imbalance", [1.0, 1.3, 2.0, 8.0])
def test_shares_sum_to_one_and_the_busiest_expert_has_the_asked_load(imbalance):
    shares = skewed_shares(16, imbalance)
    assert sum(shares) == pytest.approx(1)
    assert max(shares) * 16 == pytest.approx(imbalance)
    assert len(systematic_edges(16, 2, imbalance)) == 15
    assert all(2 * share <= 1 + 1e-12 for share in shares)


def test_without_imbalance_all_are_equal():
    assert skewed_shares(8, 1.0) == (1 / 8,) * 8


def test_ranks_get_what_their_experts_get():
    shares = skewed_shares(16, 2.0)
    assert rank_loads(16, 2.0, 16) == pytest.approx([16 * share for share in shares])
    assert rank_loads(16, 2.0, 4) == pytest.approx([4 * sum(shares[start : start + 4]) for start in range(0, 16, 4)])
    assert rank_loads(16, 2.0, 1) == pytest.approx([1.0])


def test_time_and_memory_grow_with_the_imbalance_where_ranks_share_the_experts():
    place = cluster(1, 16, "cuda", memory_bytes=80 * 2**30, peak_flops={"bfloat16": 1e15})
    columns = columns_of([Plan(dp=16, ep=ep, micro_batch_size=8) for ep in (1, 4, 16)])

    def estimated(imbalance):
        training = Training(MODEL, place, replace(TRAINER_BFLOAT16, imbalance=imbalance))
        return estimate(with_usual_speeds(training), columns)

    even, skewed = estimated(1.0), estimated(4.0)
    time = skewed.time.step_s / even.time.step_s
    memory = skewed.memory.peak_bytes / even.memory.peak_bytes
    for ratio in (time, memory):
        assert ratio[0] == pytest.approx(1)
        assert np.all(np.diff(ratio) > 0)


def loads(routing, *degrees, model=MODEL, spread=0.2, **more):
    framework = replace(TRAINER_BFLOAT16, routing=routing, **more)
    columns = columns_of([Plan(dp=ep, ep=ep) for ep in degrees])
    return expert_load(model, framework, columns, replace(DEFAULTS, router_spread=spread))


def test_the_busiest_rank_of_a_run_on_64_gb200():
    """marin-community/marin issue 7668: 256 experts on 64 ranks, 8 for each of 4,096 tokens; Megatron's average
    overload factor. Forced balance is random choice: its number follows from chance alone."""
    grug = replace(MODEL, experts=256, top_k=8, seq_len=4096)
    (forced,) = loads(Routing.RANDOM, 64, model=grug)
    assert forced == pytest.approx(1.013, abs=0.001)
    (learned,) = loads(Routing.LEARNED, 64, model=grug)
    assert 1.212 < learned < 1.338
    (unchecked,) = loads(Routing.UNCHECKED, 64, model=grug)
    assert unchecked - 1 == pytest.approx(3 * (learned - 1), rel=0.01)


def test_the_busiest_rank_as_drawn():
    """Loads of 64 experts drawn from a normal distribution, and shared out in order."""
    drawn = np.random.default_rng(5).normal(1, 0.2, (20_000, 64))
    drawn /= drawn.mean(axis=1, keepdims=True)
    model = replace(MODEL, experts=64, top_k=2, seq_len=2**20)
    expected = loads(Routing.LEARNED, 1, 2, 4, 16, 64, model=model)
    for found, ranks in zip(expected, (1, 2, 4, 16, 64), strict=True):
        busiest = drawn.reshape(-1, ranks, 64 // ranks).mean(axis=2).max(axis=1).mean()
        assert found - 1 == pytest.approx(busiest - 1, rel=0.05, abs=1e-9)
    assert np.all(loads(Routing.EVEN, 1, 4, 16) == 1)
    assert loads(Routing.LEARNED, 2, spread=50.0) == [2]  # all there is


def test_experts_take_no_more_than_their_capacity():
    (free,) = loads(Routing.UNCHECKED, 16)
    assert free > 1.8
    assert loads(Routing.UNCHECKED, 1, 16, capacity_factor=1.25) == pytest.approx([1, 1.25])
    assert loads(Routing.LEARNED, 16, capacity_factor=4.0) == loads(Routing.LEARNED, 16)
    assert loads(Routing.RANDOM, 1, 16, capacity_factor=1.5, pads_to_capacity=True) == pytest.approx([1.5, 1.5])


def test_time_memory_and_doubt_grow_with_what_a_router_is_left_to():
    place = cluster(1, 16, "cuda", memory_bytes=80 * 2**30, peak_flops={"bfloat16": 1e15})
    columns = columns_of([Plan(dp=16, ep=ep, micro_batch_size=8) for ep in (1, 4, 16)])
    kinds = (Routing.EVEN, Routing.LEARNED, Routing.UNCHECKED)
    found = [
        estimate(with_usual_speeds(Training(MODEL, place, replace(TRAINER_BFLOAT16, routing=kind))), columns)
        for kind in kinds
    ]
    for number in (lambda one: one.time.step_s, lambda one: one.memory.peak_bytes):
        even, learned, unchecked = map(number, found)
        assert learned[0] == pytest.approx(even[0])
        for more, fewer in ((learned, even), (unchecked, learned)):
            assert np.all(np.diff(more / fewer) > 0)
    even, learned, unchecked = (one.memory.log_sd for one in found)
    assert learned[0] == pytest.approx(even[0])
    assert even[2] < learned[2] < unchecked[2]
    assert found[0].time.log_sd[2] < found[2].time.log_sd[2]
    room = 1.5 * found[0].memory.peak_bytes[2]
    even, learned, unchecked = (1 - one.memory.fits(room)[2] for one in found)
    assert even < learned < unchecked


def test_times_teach_how_uneven_a_router_is():
    place = cluster(4, 8, "cuda", memory_bytes=80 * 2**30, peak_flops={"bfloat16": 1e15})
    training = with_usual_speeds(Training(MODEL, place, TRAINER_BFLOAT16))
    columns = columns_of([Plan(dp=16, ep=ep, micro_batch_size=8) for ep in (1, 2, 4, 8, 16)])
    uneven = replace(UNCALIBRATED, constants=replace(DEFAULTS, router_spread=0.6))
    measured = estimate(training, columns, uneven)
    peaks = np.full(5, np.nan)
    after = calibrate([(estimate(training, columns), Measured(measured.time.step_s, peaks, np.isnan(peaks) & False))])
    assert 0.3 < after.constants.router_spread < 0.8
    assert after.log_sd("router_spread") < 0.6
