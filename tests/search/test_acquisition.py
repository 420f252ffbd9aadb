"""Expected improvement, cost and the chance that is left, against plain numbers."""

from __future__ import annotations

import numpy as np
import pytest

from meshtune.tuner.search.physics.acquisition import EQUAL, chance_better, cost_of, log_expected_improvement
from meshtune.tuner.search.physics.speed import Component


def test_the_expected_improvement_of_a_mixture_is_what_draws_find() -> None:
    components = [
        Component(0.7, np.array([0.1, 0.5]), np.array([0.2, 0.1])),
        Component(0.3, np.array([-0.2, 0.0]), np.array([0.4, 0.3])),
    ]
    random, found = np.random.default_rng(0), np.zeros(2)
    for one in components:
        draws = one.mean + one.sd * random.standard_t(3, size=(400_000, 2))
        found += one.weight * np.mean(np.maximum(0.0, 0.05 - draws), axis=0)
    assert np.exp(log_expected_improvement(components, 0.05)) == pytest.approx(found, rel=0.02)


def test_hopeless_plans_still_have_an_order() -> None:
    means = np.array([1.0, 2.0, 5.0, 20.0, 100.0])
    logs = log_expected_improvement([Component(1.0, means, np.full(5, 0.1))], 0.0)
    assert np.all(np.isfinite(logs))
    assert np.all(np.diff(logs) < 0)
    # The density tends to 6 sqrt(3) / (pi u^4), so the integral of its tail's integral to a sixth of that times u^2.
    assert logs[2] == pytest.approx(np.log(0.1 * np.sqrt(3) / np.pi / 50**2), rel=1e-3)


def test_the_chance_to_be_better_is_the_mixtures() -> None:
    components = [
        Component(0.5, np.array([0.0]), np.array([1.0])),
        Component(0.5, np.array([3.182446]), np.array([1.0])),
    ]
    assert chance_better(components, 0.0) == pytest.approx([0.5 * 0.5 + 0.5 * 0.025], rel=1e-4)


def test_the_cost_of_a_trial_is_learnt_from_what_trials_held() -> None:
    cost = cost_of([70.0, 80.0, 110.0], [1.0, 2.0, 5.0], [30.0, 34.0])
    assert (cost.startup_s, cost.steps, cost.failed_s) == pytest.approx((60.0, 10.0, 32.0))
    assert cost.of(np.log(np.array([3.0, 3.0])), np.array([1.0, 0.5])) == pytest.approx([90.0, 61.0])


def test_without_two_measured_trials_all_cost_the_same() -> None:
    assert cost_of([70.0], [1.0], []) == EQUAL
    assert cost_of([70.0, 71.0], [2.0, 2.0], []).of(np.array([0.0, 5.0]), np.ones(2)) == pytest.approx([70.5, 70.5])
