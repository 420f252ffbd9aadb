"""What the physical search expects of its choices, what time, memory and cost are worth to it, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Recompute
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.physics.acquisition import dominated_area, front_of
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.history import read_trials
from meshtune.tuner.search.physics.prior import Rows, rows_of
from meshtune.tuner.search.physics.search import PhysicsSearch
from meshtune.tuner.search.physics.weighing import Hypotheses, PhysicsOptions, Weighing, believe, weigh

SPREAD = 0.08


@pytest.fixture(scope="module")
def small(make: Callable[[int, int | None, Bounds], Space], task: Callable[..., Task]) -> Task:
    """312 plans on 32 devices."""
    bounds = Bounds(micro_batch_size=(1, 2, 4, 8), recompute=tuple(Recompute), zero_stage=(0, 1))
    return task(make(4, 128, bounds))


@pytest.fixture(scope="module")
def rows(small: Task) -> Rows:
    return rows_of(small.training, small.space.columns)


@pytest.fixture(scope="module")
def measured(small: Task, rows: Rows) -> list[Observation]:
    """All plans, as the physics has them but for a common factor and noise; those that do not fit ran out of memory."""
    random = np.random.default_rng(0)
    steps = np.exp(rows.log_step + rows.log_tokens + 0.2 + SPREAD * random.standard_normal(len(rows)))
    peaks = np.exp(rows.log_peak + SPREAD * random.standard_normal(len(rows)))
    return [
        Observation(plan=plan, verdict=Verdict.OK, score=1.0 / step, step_time_s=step, peak_bytes=peak)
        if peak <= small.training.cluster.device.memory_bytes
        else Observation(plan=plan, verdict=Verdict.OOM)
        for plan, step, peak in zip(small.space, steps.tolist(), peaks.tolist(), strict=True)
    ]


def by_speed(measured: list[Observation]) -> list[Observation]:
    """Those that ran, the fastest first."""
    return sorted((one for one in measured if one.step_time_s), key=lambda one: one.step_time_s or 0.0)


def weighing_of(task: Task, rows: Rows, seen: list[Observation], *, seed: int = 0, **changed: Any) -> Weighing:
    trials = replace(read_trials(task, seen, Catalogue(task, rows_of)), **changed)
    belief = believe(trials, PhysicsOptions(), Hypotheses())
    return weigh(trials, rows, belief, task, seed)


def left(task: Task, seen: list[Observation]) -> float | None:
    return PhysicsSearch(0).ask(task, seen, 1).chance_left


def test_the_interval_holds_the_truth_for_most_plans_and_the_chances_come_true(
    small: Task, rows: Rows, measured: list[Observation]
) -> None:
    tried = np.random.default_rng(1).permutation(len(measured))[:12].tolist()
    weighing = weighing_of(small, rows, [measured[i] for i in tried])
    inside, ran, fits, near = [], [], [], []
    for index, one in enumerate(measured):
        if index in tried:
            continue
        expected = weighing.expectation(index)
        assert expected.step_time_low_s < expected.step_time_s < expected.step_time_high_s
        assert 0.0 <= expected.p_fits <= 1.0
        fits.append(expected.p_fits)
        ran.append(one.step_time_s is not None)
        if one.step_time_s and one.peak_bytes:
            inside.append(expected.step_time_low_s <= one.step_time_s <= expected.step_time_high_s)
            near.append(abs(np.log(one.peak_bytes / expected.peak_bytes)) < 4 * SPREAD)
    assert np.mean(inside) > 0.8
    assert np.mean(near) > 0.9
    assert np.mean(fits) == pytest.approx(np.mean(ran), abs=0.12)
    assert np.mean(np.array(fits)[ran]) > np.mean(np.array(fits)[~np.array(ran)]) + 0.4


def test_the_chance_left_falls_to_nothing_as_the_good_plans_are_tried(small: Task, measured: list[Observation]) -> None:
    ranked = by_speed(measured)
    chances = [left(small, ranked[-5:] + ranked[:count]) for count in (0, 40, 120)]
    assert chances[0] is not None
    assert chances[1] is not None
    assert chances[2] is not None
    assert chances[0] > 0.95 > chances[1] > chances[2]
    assert chances[2] < 0.1
    assert left(small, measured) == 0.0


def area(seen: list[Observation], reference: tuple[float, float]) -> float:
    """What the measured plans dominate of log(step time) and log(peak bytes)."""
    points = [(np.log(one.step_time_s), np.log(one.peak_bytes)) for one in seen if one.step_time_s and one.peak_bytes]
    return dominated_area(front_of(np.array(points)), np.array(reference))


@pytest.mark.slow
def test_a_pareto_task_extends_the_front_faster_than_the_score_alone(small: Task, measured: list[Observation]) -> None:
    fastest = by_speed(measured)[0].step_time_s or 0.0
    reference = (np.log(2 * fastest), np.log(0.9 * small.training.cluster.device.memory_bytes))

    def tried(pareto: bool, seed: int) -> list[Observation]:
        seen: list[Observation] = []
        while len(seen) < 10:
            (plan,) = PhysicsSearch(seed).ask(replace(small, pareto=pareto), seen, 1).plans
            seen.append(measured[small.space.index_of(plan)])
        return seen

    fronts, scores = ([tried(pareto, seed) for seed in range(3)] for pareto in (True, False))
    most = area(measured, reference)
    reached, alone = (np.mean([area(seen, reference) for seen in each]) / most for each in (fronts, scores))
    assert reached > 0.75
    assert reached > alone + 0.05, f"of the whole area: {reached:.2f}, for the score alone {alone:.2f}"
    lowest = [min(one.peak_bytes or np.inf for seen in each for one in seen) for each in (fronts, scores)]
    assert lowest[0] < lowest[1]
