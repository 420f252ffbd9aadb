"""Every search keeps the contract of `tuner.search.base.Search`, whatever it is made of."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Search, Task
from meshtune.tuner.search.registry import SEARCHES, create_search

KINDS = sorted(SEARCHES)
SEEDED = [kind for kind in KINDS if kind not in ("grid", "physics", "calibration")]
MODELS = ["deephyper", "optuna"]
MakeSpace = Callable[[int, int | None, Bounds], Space]


@dataclass(frozen=True)
class Asked:
    """A search, asked for plans alone."""

    search: Search

    def ask(self, space: Space, seen: Sequence[Observation], n: int) -> list[Plan]:
        training = Training(space.context.model, space.context.cluster, MEGATRON_DEEPSPEED)
        return self.search.ask(Task(space=space, training=training), seen, n).plans


def search_of(kind: str, seed: int = 0) -> Asked:
    return Asked(create_search(kind, seed=seed, options={}))


def outcome(plan: Plan) -> Observation:
    """Larger micro-batches are faster, until they do not fit."""
    if plan.micro_batch_size * plan.pp > 16:
        return Observation(plan=plan, verdict=Verdict.OOM)
    score = 100.0 * plan.micro_batch_size / plan.pp + plan.tp
    return Observation(plan=plan, verdict=Verdict.OK, score=score, step_time_s=100.0 / score)


def history_of(space: Space, n: int) -> list[Observation]:
    indexes = np.random.default_rng(7).permutation(len(space))[:n]
    return [outcome(space[int(index)]) for index in indexes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", [0, 3, 30])
def test_a_batch_is_of_distinct_legal_unseen_plans(kind: str, told: int, space: Space) -> None:
    seen = history_of(space, told)
    plans = search_of(kind).ask(space, seen, 8)
    assert len(set(plans)) == len(plans) == 8
    assert all(plan in space for plan in plans)
    assert not {one.plan for one in seen} & set(plans)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", [0, 30])
def test_the_same_arguments_give_the_same_plans(kind: str, told: int, space: Space) -> None:
    seen, search = history_of(space, told), search_of(kind)
    first = search.ask(space, seen, 4)
    assert search.ask(space, seen, 4) == first
    assert search_of(kind).ask(space, seen, 4) == first


@pytest.mark.parametrize("kind", SEEDED)
@pytest.mark.parametrize("told", [0, 30])
def test_another_seed_gives_other_plans(kind: str, told: int, space: Space) -> None:
    seen = history_of(space, told)
    assert len({tuple(search_of(kind, seed).ask(space, seen, 4)) for seed in range(4)}) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 5])
def test_an_exhausted_space_was_visited_once_and_gives_nothing(kind: str, batch: int, make: MakeSpace) -> None:
    space = make(1, 16, Bounds(tp=(1, 2), zero_stage=(0, 1), micro_batch_size=(1, 2)))
    search, seen = search_of(kind), list[Observation]()
    while plans := search.ask(space, seen, batch):
        seen += [outcome(plan) for plan in plans]
        assert len(seen) <= len(space)
    assert sorted(one.plan.key for one in seen) == sorted(plan.key for plan in space)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", [0, 30])
def test_workers_that_ask_one_after_the_other_get_different_plans(kind: str, told: int, space: Space) -> None:
    search, seen = search_of(kind), history_of(space, told)
    for _ in range(6):
        (plan,) = search.ask(space, seen, 1)
        assert plan not in {one.plan for one in seen}
        seen.append(Observation(plan=plan))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "verdict", [verdict for verdict in Verdict if verdict is not Verdict.OK], ids=lambda verdict: verdict.value
)
def test_a_history_without_a_success_still_gives_plans(kind: str, verdict: Verdict, space: Space) -> None:
    seen = [Observation(plan=plan, verdict=verdict) for plan in space[:20]]
    plans = search_of(kind).ask(space, seen, 3)
    assert len(set(plans) - {one.plan for one in seen}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_or_cancelled_plan_is_not_proposed_again(kind: str, make: MakeSpace) -> None:
    space = make(1, 16, Bounds(tp=(1, 2), zero_stage=(0, 1), micro_batch_size=(1, 2)))
    gone = [Observation(plan=space[0], verdict=Verdict.LOST), Observation(plan=space[1], verdict=Verdict.CANCELLED)]
    plans = search_of(kind).ask(space, [*gone, *map(outcome, space[2:5])], len(space))
    assert set(plans) == set(space[5:])


@pytest.mark.parametrize("kind", KINDS)
def test_seen_plans_outside_of_the_space_are_tolerated(kind: str, space: Space) -> None:
    inside = history_of(space, 25)
    legal = space[40]
    outside = [
        replace(legal, recompute=Recompute.FULL),  # a fixed dimension with another value
        replace(legal, micro_batch_size=3),  # a value that no legal plan has
        replace(legal, grad_accum_steps=legal.grad_accum_steps + 1),  # the features of a legal plan, and not that plan
        replace(legal, tp=8, pp=8),  # known values that no legal plan combines
    ]
    assert not any(plan in space for plan in outside)
    seen = [
        *inside,
        *(Observation(plan=plan, verdict=Verdict.OK, score=5.0, step_time_s=20.0) for plan in outside),
        Observation(plan=outside[0]),
    ]
    plans = search_of(kind).ask(space, seen, 4)
    assert len(set(plans)) == 4
    left = search_of(kind).ask(space, seen, len(space))
    assert set(left) == set(space) - {one.plan for one in inside}


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_space_gives_nothing(kind: str, make: MakeSpace) -> None:
    space = make(1, 8, Bounds(tp=(3,)))
    assert len(space) == 0
    assert search_of(kind).ask(space, [], 2) == []


@pytest.mark.parametrize("kind", KINDS)
def test_asking_leaves_no_file_and_no_trace_in_the_process(
    kind: str, space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, seen = search_of(kind), history_of(space, 30)
    search.ask(space, seen, 2)  # the library's own import is not the ask
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    before = (os.getcwd(), random.getstate(), repr(np.random.get_state()))
    search.ask(space, seen, 2)
    assert (os.getcwd(), random.getstate(), repr(np.random.get_state())) == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["scratch", "work"]


@pytest.mark.parametrize("kind", MODELS)
def test_a_score_that_is_no_number_is_passed_over(kind: str, space: Space) -> None:
    seen = history_of(space, 30)
    seen.append(
        Observation(
            plan=search_of(kind).ask(space, seen, 1)[0], verdict=Verdict.OK, score=float("nan"), step_time_s=1.0
        )
    )
    (plan,) = search_of(kind).ask(space, seen, 1)
    assert plan not in {one.plan for one in seen}


def test_the_grid_keeps_the_order_of_the_space(space: Space) -> None:
    assert search_of("grid").ask(space, [outcome(space[1])], 3) == [space[0], space[2], space[3]]
