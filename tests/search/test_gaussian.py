"""The Gaussian processes agree with the textbook, computed the plain way."""

from __future__ import annotations

import numpy as np
import pytest

from meshtune.tuner.search.physics.gaussian import Field, Points, condition, tamed

FIELD = Field(slopes=1.5, amplitude=0.3, length=1.2, offset=0.4, campaign_offset=0.1)


def some_points(count: int, seed: int) -> Points:
    random = np.random.default_rng(seed)
    campaign = random.integers(0, 2, count).astype(np.float64)
    return Points(random.normal(size=(count, 4)), 0.1 * random.normal(size=(count, 3)), campaign)


def plain_covariance(one: Points, other: Points) -> np.ndarray:
    """Entry by entry, from the definition of the field."""
    result = np.zeros((len(one.features), len(other.features)))
    for i in range(len(one.features)):
        for j in range(len(other.features)):
            r = np.sqrt(5) * np.linalg.norm(one.features[i] - other.features[j]) / FIELD.length
            smooth = FIELD.amplitude**2 * (1 + r + r * r / 3) * np.exp(-r)
            slopes = FIELD.slopes**2 * float(one.slopes[i] @ other.slopes[j])
            same = FIELD.campaign_offset**2 * (one.campaign[i] == other.campaign[j])
            result[i, j] = smooth + slopes + FIELD.offset**2 + same
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
