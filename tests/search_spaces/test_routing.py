"""Skewed routing has the imbalance that was asked for, and the physics counts the fullest rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from places import cluster

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.framework_profiles import TRAINER_BFLOAT16
from meshtune.search_spaces.physics.training import Training, with_usual_speeds
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import rank_loads, skewed_shares, systematic_edges

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
