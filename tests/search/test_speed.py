"""What is believed of speeds follows the evidence, and is drawn from as it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.physics.prior import Rows, rows_of, stack
from meshtune.tuner.search.physics.speed import (
    NOISE,
    Expects,
    Speeds,
    learn_speeds,
)


@pytest.fixture(scope="module")
def rows(space: Space, task: Callable[..., Task]) -> Rows:
    return rows_of(task(space).training, space.columns)


@pytest.fixture(scope="module")
def few(rows: Rows) -> Rows:
    """Twelve plans, from the fastest expected to the slowest."""
    return rows.take(np.argsort(rows.log_step)[:: len(rows) // 12][:12])


def noise(count: int, seed: int = 0) -> FloatColumn:
    return NOISE * np.random.default_rng(seed).standard_normal(count)


def learn(rows: Rows, log_times: FloatColumn, weight: float = 1.0) -> Speeds:
    return learn_speeds(rows, log_times, np.full(len(rows), weight))


def trusting(speeds: Speeds) -> float:
    return sum(weight for weight, hypothesis, _ in speeds.kept if hypothesis.expects is not Expects.ALIKE)


def middle(speeds: Speeds, rows: Rows) -> FloatColumn:
    return np.sum([one.weight * one.mean for one in speeds.at(rows)], axis=0)


@pytest.mark.parametrize("off", [0.0, 0.7, -0.7], ids=["as expected", "twice as slow", "twice as fast"])
def test_measurements_as_the_physics_has_them_make_it_trusted_whatever_the_cluster_reaches(
    off: float, few: Rows
) -> None:
    speeds = learn(few, few.log_step + off + noise(len(few)))
    assert trusting(speeds) > 0.99
    assert speeds.kept[0][0] > 0.5 + 0.1  # the closely trusting one gained, too


def test_measurements_that_the_physics_cannot_foretell_are_believed_instead(few: Rows) -> None:
    alike = learn(few, few.log_ideal + 0.3 + noise(len(few)))
    inverted = learn(few, 2 * few.log_step.mean() - few.log_step + noise(len(few)))
    # Constants in doubt can make plans alike, but turn no order round.
    assert np.std(middle(alike, few)) < NOISE
    assert trusting(inverted) < 0.05


def test_a_large_scatter_about_the_physics_order_leaves_it_trusted(few: Rows) -> None:
    # A network that retries: every plan is 3 to 10 times slower than expected, each by its own luck.
    for seed in range(5):
        luck = np.random.default_rng(seed).normal(1.5, 0.5, len(few))
        assert trusting(learn(few, few.log_step + luck)) > 0.5


def with_past(few: Rows, past_times: FloatColumn, own_times: FloatColumn, own: int) -> Speeds:
    """Of the twelve plans the first `own` are measured by the campaign itself, and all by an earlier one."""
    rows = stack([few.take(slice(0, own)), replace(few, campaign=np.ones(len(few)))])
    return learn(rows, np.concatenate([own_times[:own], past_times]))


def believing_the_past(speeds: Speeds) -> float:
    return sum(weight for weight, _, process in speeds.kept if (process.points.campaign > 0).any())


@pytest.mark.parametrize("own", [0, 1, 6])
def test_earlier_campaigns_are_believed_as_long_as_they_foretell_the_own_measurements(own: int, few: Rows) -> None:
    times = few.log_step + 0.5
    agreeing = with_past(few, times + noise(12), times + noise(12, seed=1), own)
    contrary = with_past(few, 2 * times.mean() - times + noise(12), times + noise(12, seed=1), own)
    assert believing_the_past(agreeing) > 0.899
    assert believing_the_past(contrary) == pytest.approx({0: 0.9, 1: 0.3, 6: 0.0}[own], abs=0.2)


def test_a_run_on_a_sick_node_does_not_bend_what_is_believed(few: Rows, rows: Rows) -> None:
    times = few.log_step + noise(len(few))
    sound = learn(few, times)
    times[5] += np.log(30.0)
    assert middle(learn(few, times), rows) == pytest.approx(middle(sound, rows), abs=0.05)
