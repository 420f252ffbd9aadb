"""Areas of Pareto fronts, against counting and against each other."""

from __future__ import annotations

import numpy as np
import pytest

from meshtune.tuner.search.physics.acquisition import (
    Outlook,
    added_area,
    chance_of_growth,
    dominated_area,
    front_of,
    log_expected_growth,
    measured_front,
)

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
