"""Plans that are chosen together are those that a process conditioned anew after each choice would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.plan import Recompute
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.physics.batch import Batch, Weighing, moments_of
from meshtune.tuner.search.physics.belief import Belief, PhysicsOptions, believe
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.gaussian import condition
from meshtune.tuner.search.physics.history import read_trials
from meshtune.tuner.search.physics.prior import Rows, rows_of, stack
from meshtune.tuner.search.physics.speed import NOISE, Speeds, points_of

UNDER_WAY = 3


@pytest.fixture(scope="module")
def small(make: Callable[[int, int | None, Bounds], Space], task: Callable[..., Task]) -> Task:
    """312 plans on 32 devices."""
    return task(make(4, 128, Bounds(micro_batch_size=(1, 2, 4, 8), recompute=tuple(Recompute), zero_stage=(0, 1))))


def history(task: Task, measured: int, under_way: int = UNDER_WAY) -> list[Observation]:
    """Plans at random that take what the physics says, and some noise; the last ones are under way."""
    random = np.random.default_rng(4)
    rows = rows_of(task.training, task.space.columns)
    seen: list[Observation] = []
    for at in random.choice(len(rows), measured + under_way, replace=False).tolist():
        logs = np.array([rows.log_step[at] + rows.log_tokens[at], rows.log_peak[at]])
        step, peak = np.exp(logs + random.normal(0, 0.1, 2))
        fits = peak < task.training.cluster.device.memory_bytes
        ok = Observation(plan=task.space[at], verdict=Verdict.OK, score=1 / step, step_time_s=step, peak_bytes=peak)
        seen.append(ok if fits else Observation(plan=task.space[at], verdict=Verdict.OOM))
    return [*seen[:measured], *(Observation(plan=one.plan) for one in seen[measured:])]


def belief_of(task: Task, seen: Sequence[Observation]) -> tuple[Batch, Belief]:
    """A batch of all plans that were not chosen, and what it believes."""
    trials = read_trials(task, seen, Catalogue(task, rows_of))
    belief = believe(trials, PhysicsOptions())
    candidates = rows_of(task.training, task.space.columns).take(trials.unseen)
    views = belief.speeds.views(stack([candidates, trials.pending]))
    best = float(np.min(trials.own_times)) if len(trials.own_times) else None
    components, memory = views.components(len(candidates)), belief.memory(candidates)
    weighing = Weighing(trials, candidates, belief.speeds, components, memory, best, task.pareto, 0)
    return Batch(weighing, views, belief.memory(trials.pending).peak), belief


def observed(speeds: Speeds, row: Rows) -> Speeds:
    """The plain way: each process conditioned anew, on one more observation that is just as expected."""
    kept = []
    for weight, hypothesis, process in speeds.kept:
        points, noise = points_of(row), np.full(1, NOISE**2)
        mean = np.zeros(1) if process is None else process.at(points)[0]
        more = (
            condition(hypothesis.field, points, mean, noise)
            if process is None
            else process.extended(points, mean, noise)
        )
        kept.append((weight, hypothesis, more))
    return Speeds(kept)


def plainly(weighing: Weighing, belief: Belief, row: Rows) -> Weighing:
    mean: FloatColumn = moments_of(weighing.speeds.at(row))[0]
    speeds, trials = observed(weighing.speeds, row), weighing.trials
    trials = replace(
        trials,
        own_times=np.append(trials.own_times, mean),
        own_peaks=np.append(trials.own_peaks, belief.memory(row).peak),
    )
    best = float(mean[0]) if weighing.best is None else min(weighing.best, float(mean[0]))
    return replace(weighing, speeds=speeds, components=speeds.at(weighing.rows), best=best, trials=trials)


@pytest.mark.parametrize("pareto", [False, True], ids=["score", "pareto"])
@pytest.mark.parametrize("measured", [0, 12])
def test_each_choice_is_the_best_after_those_before_it_were_observed_as_expected(
    measured: int, pareto: bool, small: Task
) -> None:
    batch, belief = belief_of(replace(small, pareto=pareto), history(small, measured))
    plain = batch.weighing
    for row in range(UNDER_WAY):
        plain = plainly(plain, belief, plain.trials.pending.take(np.array([row])))
    left = np.ones(len(plain.rows), dtype=np.bool_)
    for at, weighing in batch.choices(5):
        assert weighing.best == pytest.approx(plain.best)
        assert weighing.worth() == pytest.approx(plain.worth(), abs=1e-6)
        assert at == plain.choose(left)
        left[at] = False
        plain = plainly(plain, belief, plain.rows.take(np.array([at])))
    assert np.count_nonzero(~left) == 5


def test_a_plan_under_way_counts_as_measured_just_as_expected(small: Task) -> None:
    seen = history(small, 0, 1)
    batch, belief = belief_of(small, seen)
    mean = moments_of(belief.speeds.at(batch.weighing.trials.pending))[0]
    waiting = batch.waiting()
    assert batch.weighing.best is None
    assert waiting.weighing.best == pytest.approx(float(mean[0]))
    slowest = np.array([int(np.argmax(batch.weighing.rows.log_step))])
    assert waiting.believing(slowest).weighing.best == waiting.weighing.best
