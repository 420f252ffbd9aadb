"""The guard holds back what is expected not to fit, learns from the trials, and never loses a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.physics.estimate import estimate_memory
from meshtune.search_spaces.physics.training import Training, usable_bytes
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.surrogate import in_turn
from meshtune.tuner.search.registry import create_search

GUARD = 0.5


@pytest.fixture(scope="module")
def tight(make: Callable[[int, int | None, Bounds], Space], task: Callable[..., Task]) -> Task:
    """63 plans, of which the larger micro-batches do not fit."""
    return task(make(1, 512, Bounds(micro_batch_size=(1, 4, 16, 64), pp=(1, 2, 4), zero_stage=(0, 1))))


def peaks(task: Task) -> Any:
    return estimate_memory(task.training, task.space.columns).peak_bytes


def turns(task: Task, seen: list[Observation], guard: float = GUARD) -> list[list[int]]:
    return [turn.tolist() for turn in in_turn(task, seen, np.arange(len(task.space)), guard)]


def test_what_is_expected_not_to_fit_comes_in_the_second_turn(tight: Task) -> None:
    likely, others = turns(tight, [])
    assert min(len(likely), len(others)) > 10
    usable = usable_bytes(tight.training.cluster)
    assert peaks(tight)[likely].max() <= usable < peaks(tight)[others].min()
    assert sorted(likely + others) == list(range(len(tight.space)))


def test_a_plan_that_ran_out_of_memory_makes_others_less_likely_to_fit(tight: Task) -> None:
    before = turns(tight, [])[0]
    fullest = sorted(before, key=lambda index: peaks(tight)[index])[len(before) // 2 :]
    after = turns(tight, [Observation(plan=tight.space[index], verdict=Verdict.OOM) for index in fullest])[0]
    assert set(after) < set(before)


def test_a_cluster_of_unknown_speed_is_guarded_without_learning(tight: Task) -> None:
    cluster = replace(tight.training.cluster, node_link=None)
    unknown = replace(tight, training=Training(tight.training.model, cluster, tight.training.framework))
    seen = [Observation(plan=plan, verdict=Verdict.OOM) for plan in tight.space]
    assert turns(unknown, seen) == turns(tight, [])


@pytest.mark.parametrize("kind", ["deephyper", "optuna"])
def test_a_guarded_search_proposes_the_unlikely_when_nothing_else_is_left(kind: str, tight: Task) -> None:
    likely, others = turns(tight, [])
    seen = [Observation(plan=tight.space[index], verdict=Verdict.OK, score=1.0) for index in likely[:-4]]
    asked = create_search(kind, seed=0, options={"guard": GUARD}).ask(tight, seen, 10).plans
    order = [tight.space.index_of(plan) for plan in asked]
    assert sorted(order[:4]) == likely[-4:]
    assert set(order[4:]) < set(others)
