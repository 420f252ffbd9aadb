"""Gaussian processes, expected improvement, cost, chances and Pareto areas, against textbook and counting."""

from __future__ import annotations

import numpy as np
import pytest

from meshtune.tuner.search.physics.acquisition import (
    EQUAL,
    FAR_OUT,
    Outlook,
    added_area,
    chance_better,
    chance_of_growth,
    cost_of,
    dominated_area,
    front_of,
    log_expected_growth,
    log_expected_improvement,
    measured_front,
)
from meshtune.tuner.search.physics.gaussian import OWN_EFFECTS, TOGETHER, Field, Points, condition, tamed
from meshtune.tuner.search.physics.speed import Component

FIELD = Field(slopes=1.5, amplitude=0.3, length=1.2, offset=0.4, campaign_offset=0.1, knobs=1.5)


def some_points(count: int, seed: int) -> Points:
    random = np.random.default_rng(seed)
    campaign = random.integers(0, 2, count).astype(np.float64)
    return Points(
        random.normal(size=(count, 4)),
        0.1 * random.normal(size=(count, 3)),
        campaign,
        0.1 * random.normal(size=(count, 2)),
    )


def plain_covariance(one: Points, other: Points) -> np.ndarray:
    """Entry by entry, from the definition of the field."""
    result = np.zeros((len(one.features), len(other.features)))
    for i in range(len(one.features)):
        for j in range(len(other.features)):
            r = np.sqrt(5) * np.linalg.norm(one.features[i] - other.features[j]) / FIELD.length
            alike = (1 + r + r * r / 3) * np.exp(-r)
            smooth = FIELD.amplitude**2 * alike
            knobs = FIELD.knobs**2 * float(one.knobs[i] @ other.knobs[j])
            knobs = knobs * (1 + OWN_EFFECTS * alike) + TOGETHER * knobs**2
            slopes = FIELD.slopes**2 * float(one.slopes[i] @ other.slopes[j])
            same = FIELD.campaign_offset**2 * (one.campaign[i] == other.campaign[j])
            result[i, j] = smooth + slopes + FIELD.offset**2 + same + knobs
    return result


def test_the_posterior_is_the_textbooks() -> None:
    told, asked = some_points(12, 1), some_points(5, 2)
    y, noise = np.random.default_rng(3).normal(size=12), np.linspace(0.01, 0.05, 12)
    view = condition(FIELD, told, y, noise).view(asked)
    inverse = np.linalg.inv(plain_covariance(told, told) + np.diag(noise))
    across = plain_covariance(asked, told)
    assert view.mean == pytest.approx(across @ inverse @ y, rel=1e-5)
    covariance = plain_covariance(asked, asked) - across @ inverse @ across.T
    assert view.sd == pytest.approx(np.sqrt(np.diag(covariance)), rel=1e-5)
    joint_mean, joint = condition(FIELD, told, y, noise).joint(asked)
    assert joint_mean == pytest.approx(view.mean)
    assert joint == pytest.approx(covariance, abs=1e-6)


def test_a_view_that_believes_is_the_process_that_observed_what_it_expected() -> None:
    told, asked = some_points(6, 8), some_points(9, 9)
    process = condition(FIELD, told, np.random.default_rng(1).normal(size=6), np.full(6, 0.02))
    view = process.view(asked).believing(np.array([5, 2]), 0.02).believing(np.array([7]), 0.02)
    pending = asked.take(np.array([5, 2, 7]))
    observed = process.extended(pending, process.view(pending).mean, np.full(3, 0.02))
    after = observed.view(asked)
    assert view.mean == pytest.approx(after.mean, rel=1e-6)
    assert view.sd == pytest.approx(after.sd, rel=1e-6)
    assert np.all(view.sd <= process.view(asked).sd)
    assert np.all(view.sd[[5, 2, 7]] < 0.9 * process.view(pending).sd)


def test_a_run_on_a_sick_node_gets_more_noise_and_no_other_does() -> None:
    told = some_points(15, 11)
    random = np.random.default_rng(12)
    y = np.linalg.cholesky(plain_covariance(told, told) + 1e-9 * np.eye(15)) @ random.normal(size=15)
    noise = np.full(15, 0.05**2)
    y += 0.05 * random.normal(size=15)
    assert tamed(FIELD, told, y, noise, 4.0) == pytest.approx(noise)
    y[4] += 3.4  # 30 times too slow
    found = tamed(FIELD, told, y, noise, 4.0)
    assert found[4] > 100 * noise[4]
    assert np.delete(found, 4) == pytest.approx(np.delete(noise, 4))


@pytest.mark.parametrize("heavy", [False, True])
def test_the_expected_improvement_of_a_mixture_is_what_draws_find(heavy: bool) -> None:
    components = [
        Component(0.7, np.array([0.1, 0.5]), np.array([0.2, 0.1])),
        Component(0.3, np.array([-0.2, 0.0]), np.array([0.4, 0.3])),
    ]
    random, found = np.random.default_rng(0), np.zeros(2)
    for one in components:
        unit = random.standard_t(3, size=(400_000, 2)) if heavy else random.standard_normal((400_000, 2))
        found += one.weight * np.mean(np.maximum(0.0, 0.05 - one.mean - one.sd * unit), axis=0)
    assert np.exp(log_expected_improvement(components, 0.05, heavy=heavy)) == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize(
    ("heavy", "far"),
    [
        # Of the normal tail's integral, the density over u^2 is left.
        (False, np.log(0.1 / np.sqrt(2 * np.pi) / 50**2) - 50**2 / 2),
        # The density tends to 6 sqrt(3) / (pi u^4), so its tail's integral, integrated, to a sixth of that times u^2.
        (True, np.log(0.1 * np.sqrt(3) / np.pi / 50**2)),
    ],
)
def test_hopeless_plans_still_have_an_order(heavy: bool, far: float) -> None:
    means = np.array([1.0, 2.0, 5.0, 20.0, 100.0])
    logs = log_expected_improvement([Component(1.0, means, np.full(5, 0.1))], 0.0, heavy=heavy)
    assert np.all(np.isfinite(logs))
    assert np.all(np.diff(logs) < 0)
    assert logs[2] == pytest.approx(far, abs=5e-3)


def test_the_expected_improvement_does_not_jump_where_its_expansion_begins() -> None:
    edge = 0.1 * (-FAR_OUT + np.array([-1e-6, 1e-6]))
    assert np.ptp(log_expected_improvement([Component(1.0, edge, np.full(2, 0.1))], 0.0)) < 0.01


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


REFERENCE = np.array([1.0, 1.0])


def test_a_front_holds_what_nothing_beats_in_both() -> None:
    points = np.array([[0.5, 0.5], [0.2, 0.8], [0.6, 0.6], [0.2, 0.9], [0.9, 0.1], [0.5, 0.5]])
    assert front_of(points).tolist() == [[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]]


def test_the_dominated_area_is_what_counting_finds() -> None:
    front = front_of(np.random.default_rng(0).random((12, 2)))
    grid = np.stack(np.meshgrid(*[(np.arange(1000) + 0.5) / 1000] * 2), axis=-1).reshape(-1, 2)
    covered = np.any(np.all(front[None] <= grid[:, None], axis=2), axis=1)
    assert dominated_area(front, REFERENCE) == pytest.approx(covered.mean(), abs=2e-3)


def test_what_a_point_adds_is_the_difference_it_makes() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        front = front_of(random.random((6, 2)) * 1.2)
        points = random.random((20, 2)) * 1.4 - 0.1
        before = dominated_area(front, REFERENCE)
        after = [dominated_area(front_of(np.vstack([front, point])), REFERENCE) for point in points]
        assert added_area(front, REFERENCE, points) == pytest.approx(np.array(after) - before, abs=1e-12)


def test_the_plan_that_surely_extends_the_front_is_worth_the_most() -> None:
    front = measured_front(np.array([0.0, 0.3]), np.array([-0.1, -0.6]), 0.0)
    assert front is not None
    time, peak = np.array([-0.2, 0.15, 0.3]), np.array([-0.2, -0.35, -0.3])
    outlook = Outlook(time, np.full(3, 1e-3), peak, np.full(3, 1e-3))
    worth = log_expected_growth(front, outlook, 0)
    assert np.argsort(-worth).tolist() == [0, 1, 2]
    assert np.exp(worth[0]) == pytest.approx(0.2 * 0.2 + 0.3 * 0.1, rel=0.02)
    assert chance_of_growth(front, outlook, np.array([1.0, 1.0, 1.0]), 0.02, 0) == pytest.approx(1.0)
    only_beaten = Outlook(time[2:], np.full(1, 1e-3), peak[2:], np.full(1, 1e-3))
    assert chance_of_growth(front, only_beaten, np.ones(1), 0.02, 0) == 0.0


def test_without_a_known_peak_there_is_no_front() -> None:
    assert measured_front(np.array([0.1]), np.array([np.nan]), 0.0) is None
