"""What is believed of speeds follows the evidence, and is drawn from as it says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.physics.prior import Rows, rows_of
from meshtune.tuner.search.physics.speed import (
    HYPOTHESES,
    NOISE,
    Expects,
    Speeds,
    learn_speeds,
    points_of,
)

# Of Student's t with 3 degrees of freedom: what 75 % and 99.5 % of it lie below.
QUARTILE, FAR_OUT = 0.764892, 5.840909


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


def test_measurements_that_the_physics_cannot_foretell_make_it_distrusted(few: Rows) -> None:
    alike = learn(few, few.log_ideal + 0.3 + noise(len(few)))
    inverted = learn(few, 2 * few.log_step.mean() - few.log_step + noise(len(few)))
    assert trusting(alike) < 0.5
    assert alike.kept[0][0] < 0.01  # the closely trusting one
    assert trusting(inverted) < 0.01


def test_where_transfers_between_stages_stall_a_few_pipelines_tell(rows: Rows) -> None:
    slower = rows.log_stalled - rows.log_step
    pipelines = rows.take(np.argsort(-slower, kind="stable")[:2])
    assert np.all(pipelines.log_stalled - pipelines.log_step > 1.0)
    speeds = learn(pipelines, pipelines.log_stalled)
    stalls = sum(weight for weight, hypothesis, _ in speeds.kept if hypothesis.expects is Expects.STALLS)
    assert stalls > 0.25
    # The plans without stages are not held as much slower.
    without = rows.take(np.flatnonzero(slower < 1e-9))
    moved = middle(speeds, without) - middle(learn(pipelines.take(slice(0, 0)), np.zeros(0)), without)
    assert np.max(moved) < 0.5 * np.min(pipelines.log_stalled - pipelines.log_step)


def test_what_a_few_plans_share_is_expected_of_the_others(few: Rows, rows: Rows) -> None:
    speeds = learn(few, few.log_step + 0.5)
    for component in speeds.at(rows):
        assert np.max(np.abs(component.mean - rows.log_step - 0.5)) < 0.1
    untold = learn(few.take(slice(0, 0)), np.zeros(0)).at(rows)[0]
    assert np.all(speeds.at(rows)[0].sd < 0.5 * untold.sd)


def test_an_observation_that_counts_little_moves_little(few: Rows) -> None:
    one = few.take(slice(0, 1))
    full, little = (middle(learn(one, one.log_step + 0.3, weight), few) - few.log_step for weight in (1.0, 1e-4))
    assert np.all(little[1:] < full[1:])
    assert little[0] < 0.9 * full[0]


def test_a_run_on_a_sick_node_does_not_bend_what_is_believed(few: Rows, rows: Rows) -> None:
    times = few.log_step + noise(len(few))
    sound = learn(few, times)
    times[5] += np.log(30.0)
    assert middle(learn(few, times), rows) == pytest.approx(middle(sound, rows), abs=0.05)


def test_draws_scatter_together_as_the_joint_covariance_says_with_the_tails_of_students_t(few: Rows) -> None:
    only = [HYPOTHESES[1]]
    told, asked = few.take(slice(0, 4)), few.take(slice(4, 12))
    for speeds in (
        learn_speeds(told, told.log_step + 0.2, np.ones(4), only),
        learn_speeds(told.take(slice(0, 0)), np.zeros(0), np.zeros(0), only),
    ):
        ((_, hypothesis, process),) = speeds.kept
        (component,) = speeds.at(asked)
        points = points_of(asked)
        covariance = hypothesis.field.between(points, points) if process is None else process.joint(points)[1]
        drawn = speeds.draw(asked, 40_000, np.random.default_rng(0)) - component.mean
        assert drawn.shape == (40_000, 8)
        weights = np.random.default_rng(1).normal(size=(8, 6))
        directions = np.concatenate([np.eye(8), np.eye(8) - np.roll(np.eye(8), 1, axis=1), weights], axis=1)
        expected = np.sqrt(np.diag(directions.T @ covariance @ directions))
        along = np.abs(drawn @ directions)
        assert np.median(along, axis=0) / expected == pytest.approx(np.full(22, QUARTILE), rel=0.03)
        assert np.quantile(along, 0.99, axis=0) / expected == pytest.approx(np.full(22, FAR_OUT), rel=0.12)


def test_plans_that_are_all_but_equal_can_be_drawn(few: Rows) -> None:
    twins = few.take(np.zeros(50, dtype=np.int64))
    drawn = learn(few, few.log_step).draw(twins, 200, np.random.default_rng(0))
    assert np.all(np.isfinite(drawn))
    assert np.max(np.std(drawn, axis=1)) < 0.02


@pytest.mark.parametrize("told", [0, 5])
def test_a_believed_plan_moves_no_mean_and_takes_doubt_away_around_it(told: int, few: Rows) -> None:
    speeds = learn(few.take(slice(0, told)), few.log_step[:told] + 0.2)
    believed = speeds.views(few).believing(np.array([7]))
    for before, after in zip(speeds.at(few), believed.components(), strict=True):
        assert after.weight == before.weight
        assert after.mean == pytest.approx(before.mean, abs=1e-6)
        assert np.all(after.sd <= before.sd + 1e-9)
        assert after.sd[7] < min(1.01 * NOISE, before.sd[7])
