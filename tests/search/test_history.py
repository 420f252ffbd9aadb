"""A history is read as numbers: what teaches, how much of it is kept, and in which units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, PastCampaign, Task
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.history import Trials, read_trials
from meshtune.tuner.search.physics.prior import rows_of


def read(task: Task, seen: Sequence[Observation]) -> Trials:
    return read_trials(task, seen, Catalogue(task, rows_of))


def measured(plan: Plan, step_time_s: float, **more: Any) -> Observation:
    return Observation(plan=plan, verdict=Verdict.OK, score=1.0 / step_time_s, step_time_s=step_time_s, **more)


def steps_of(task: Task, log_times: Any) -> list[int]:
    """The step times in seconds that logarithms of seconds per token stand for, where the batch is fixed."""
    tokens = task.space[0].global_batch_size * task.training.model.seq_len
    return list(np.exp(log_times + np.log(tokens)).round().astype(int).tolist())


def test_times_are_logarithms_of_seconds_per_token_whatever_the_batch(
    make: Callable[[int, int | None, Bounds], Space], task: Callable[..., Task]
) -> None:
    free = task(make(1, None, Bounds(grad_accum_steps=(1, 8), micro_batch_size=(2,))))
    small, large = (plan for plan in free.space if (plan.tp, plan.pp, plan.zero_stage) == (1, 1, 0))
    assert (small.global_batch_size, large.global_batch_size) == (16, 128)
    trials = read(free, [measured(large, 8.0), measured(small, 1.5)])
    assert trials.log_times == pytest.approx(np.log([8.0 / 128 / 2048, 1.5 / 16 / 2048]))
    assert trials.best.log_tokens == pytest.approx([np.log(128 * 2048)])


def test_every_verdict_that_tells_of_the_plan_teaches_and_the_others_do_not(
    space: Space, task: Callable[..., Task]
) -> None:
    seen = [measured(space[0], 3.0, peak_bytes=2.0**33)]
    seen += [
        Observation(plan=plan, verdict=verdict) for plan, verdict in zip(space[1:8], list(Verdict)[1:], strict=True)
    ]
    seen += [Observation(plan=space[9]), measured(space[10], 2.0)]
    trials = read(task(space), seen)
    told = [Verdict.OK, Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.PRUNED, Verdict.OK]
    assert sorted(trials.tried.verdicts) == sorted(told)
    assert np.isfinite(trials.tried.log_peak).sum() == 1
    assert steps_of(task(space), trials.log_times) == [3, 2]
    assert trials.own_peaks[0] == pytest.approx(33 * np.log(2))
    assert np.isnan(trials.own_peaks[1])
    assert trials.pending.features.tolist() == rows_of_plans(task(space), [space[9]])
    assert trials.best.features.tolist() == rows_of_plans(task(space), [space[10]])
    assert list(trials.ran_out) == [one.plan for one in seen if one.verdict is Verdict.OOM]


def rows_of_plans(task: Task, plans: Sequence[Plan]) -> Any:
    listed = [task.space.index_of(plan) for plan in plans]
    return rows_of(task.training, task.space.columns).take(np.array(listed)).features.tolist()


def test_earlier_campaigns_count_as_much_as_they_weigh_and_are_no_ones_best(
    space: Space, task: Callable[..., Task], make: Callable[[int, int | None, Bounds], Space]
) -> None:
    larger = task(make(2, 16, Bounds()))
    failed = Observation(plan=larger.space[1], verdict=Verdict.OOM)
    past = (
        PastCampaign(training=larger.training, seen=(measured(larger.space[0], 1e-3), failed), weight=0.25),
        PastCampaign(training=task(space).training, seen=(measured(space[3], 2e-3),), weight=0.5),
    )
    trials = read(task(space, past=past), [measured(space[0], 1.0)])
    assert trials.weights.tolist() == [1.0, 0.25, 0.5]
    assert trials.tried.weights.tolist() == [1.0, 0.25, 0.25, 0.5]
    assert trials.measured.campaign.tolist() == [0.0, 1.0, 2.0]
    assert len(trials.own_times) == len(trials.best) == 1
    assert trials.best.features.tolist() == rows_of_plans(task(space), [space[0]])
    assert list(trials.ran_out) == []
    # Each campaign's plans are what the physics says of them on that campaign's own cluster.
    assert trials.measured.log_step[1] == pytest.approx(rows_of(larger.training, larger.space.columns).log_step[0])
