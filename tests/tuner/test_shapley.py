"""Exact Shapley values: what they add up to, what an unused knob gets, and the knobs of measured plans."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import toy

from meshtune.tuner.results.analysis.shapley import explain_knobs, shapley_values
from meshtune.tuner.specs.read import read_spec

RANDOM = np.random.default_rng(0)
POINTS, BACKGROUND = RANDOM.normal(size=(7, 4)), RANDOM.normal(size=(11, 4))
SPEC = toy.SPEC | {"space": {"tp": [1, 2, 4], "pp": [1, 2], "micro_batch_size": [1, 2], "zero_stage": [0, 1]}}


def wild(rows):
    """A function of three of four features, with interactions."""
    return rows[:, 0] * rows[:, 1] + np.sin(3 * rows[:, 2]) * rows[:, 0]


def test_the_values_of_a_point_add_up_to_its_prediction_minus_the_mean():
    values = shapley_values(wild, POINTS, BACKGROUND)
    assert values.sum(axis=1) == pytest.approx(wild(POINTS) - wild(BACKGROUND).mean())


def test_a_feature_that_is_not_used_gets_nothing():
    assert shapley_values(wild, POINTS, BACKGROUND)[:, 3] == pytest.approx(np.zeros(len(POINTS)))


def test_a_sum_gives_each_feature_its_own_term():
    values = shapley_values(lambda rows: rows @ np.array([1.0, -2.0, 3.0, 0.0]), POINTS, BACKGROUND)
    assert values == pytest.approx((POINTS - BACKGROUND.mean(axis=0)) * [1.0, -2.0, 3.0, 0.0])


def test_a_product_is_shared_by_its_factors():
    zeros = np.zeros((1, 2))
    values = shapley_values(lambda rows: rows[:, 0] * rows[:, 1], np.array([[2.0, 3.0]]), zeros)
    assert values.tolist() == [[3.0, 3.0]]


def test_knobs_of_measured_plans_are_ranked_by_what_they_account_for():
    space = read_spec(SPEC, None)[1]
    measured = {
        space.complete(tp=tp, micro_batch_size=size, zero_stage=1): 100.0 * 2**-tp * size**0.1
        for tp, size in product((1, 2, 4), (1, 2))
    }
    measured |= {
        space.complete(tp=tp, pp=2, micro_batch_size=size, zero_stage=1): 100.0 * 2**-tp * size**0.1
        for tp, size in product((1, 2), (1, 2))
    }
    found = explain_knobs(space, measured)
    assert list(found.knobs) == ["tp", "micro_batch_size", "pp"]
    assert found.knobs["tp"] > 5 * found.knobs["micro_batch_size"]
    assert found == explain_knobs(space, measured)


def test_few_plans_tell_nothing():
    space = read_spec(SPEC, None)[1]
    found = explain_knobs(space, {space.complete(tp=tp): 1.0 for tp in (1, 2)})
    assert (found.knobs, found.nothing) == ({}, "2 plans with a speed are fewer than 8: only noise")
