"""Every search keeps the contract of `tuner.search.base.Search`, whatever it is made of: over layouts, and over spaces
with knobs, of few plans, which can be exhausted, and of 10^9."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.listing import in_random_order
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search import base
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.registry import SEARCHES, create_search
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

KINDS = sorted(SEARCHES)
# Those that take knobs.
FREE = [kind for kind in KINDS if kind != "calibration"]
SEEDED = [kind for kind in FREE if kind not in ("grid", "physics")]
MODELS = ["deephyper", "optuna"]
MakeSpace = Callable[[int, int | None, Bounds], Space]
FEW: dict[str, Any] = {
    "fused": {"values": [False, True]},
    "overlap": {"values": ["off", "ring", "bulk"], "when": "tp > 1"},
    "chunks": {"values": [1, 2, 8], "when": "overlap == ring"},
}
MANY: dict[str, Any] = {
    **FEW,
    "channels": {"values": [2, 4, 8, 16, 32], "default": 4},
    "share": {"values": [0.0, 0.3, 0.6, 1.0], "memory": "less"},
    "level": {"values": ["low", "mid", "high"], "kind": "ordered"},
    "history": {"values": ["auto", 1, 16, 256], "kind": "numeric"},
    "count": {"values": [1, 2, 4]},
    **{f"idle_{at}": {"values": [0, 1, 2, 3]} for at in range(8)},
}


def with_knobs(knobs: dict[str, Any], **space: Any) -> Task:
    told = {name: own if name == "nodes" else {"env": name.upper(), **own} for name, own in knobs.items()}
    bounds = {"tp": [1, 2, 4], "pp": [1, 2], "micro_batch_size": [1, 2], "zero_stage": [0, 1], **space}
    spec, found = read_spec(
        {
            "model": "gpt-22b",
            "cluster": {"preset": "frontier", "nodes": 4},
            "global_batch_size": 64,
            "workload": "simulated",
            "runner": "simulated",
            "objective": "tflops_per_device",
            "space": bounds,
            "knobs": told,
        },
        None,
    )
    return base.task_of(spec, found, training_of(spec))


@pytest.fixture(scope="module")
def few() -> Task:
    """26 plans."""
    return with_knobs(FEW, tp=[1, 2], pp=[2], micro_batch_size=[1], zero_stage=[0, 1])


@pytest.fixture(scope="module")
def many() -> Task:
    task = with_knobs(MANY)
    assert task.space.plans > 1e9
    return task


@pytest.fixture(scope="module")
def sizes() -> Task:
    return with_knobs({"nodes": {"values": [2, 4]}, "fused": {"values": [False, True]}}, tp=[2, 4], zero_stage=[1])


KNOBS = ("few", "many", "sizes")


@pytest.fixture
def sixteen(make: MakeSpace) -> Task:
    """Few layouts."""
    return task_of(make(1, 16, Bounds(tp=(1, 2), zero_stage=(0, 1), micro_batch_size=(1, 2))))


@pytest.fixture
def layouts(space: Space) -> Task:
    return task_of(space)


@pytest.fixture
def named(request: pytest.FixtureRequest) -> Callable[[str], Task]:
    return request.getfixturevalue


def task_of(space: Space) -> Task:
    return Task(space=space, training=Training(space.context.model, space.context.cluster, MEGATRON_DEEPSPEED))


def searched(*tasks: tuple[str, int]) -> pytest.MarkDecorator:
    """For every search, the names of the tasks that it takes, each with a number."""
    rows = [(kind, *task) for task in tasks for kind in (KINDS if task[0] in ("layouts", "sixteen") else FREE)]
    # Seconds each: the models of such a search are fitted after each plan, or to many.
    slow = {("calibration", "sixteen", 1), ("calibration", "layouts", 30), *((kind, "few", 1) for kind in MODELS)}
    marked = [pytest.param(*row, marks=[pytest.mark.long] * (row in slow)) for row in rows]
    return pytest.mark.parametrize(("kind", "task", "number"), marked)


def outcome(plan: Plan) -> Observation:
    """Larger micro-batches are faster, until they do not fit; what is fused is faster."""
    if plan.micro_batch_size * plan.pp > 16 or (plan.knobs and plan.micro_batch_size > 1):
        return Observation(plan=plan, verdict=Verdict.OOM)
    score = 100.0 * plan.micro_batch_size / plan.pp + plan.tp
    if plan.knobs:
        score = 100.0 + 30.0 * bool(plan.knobs["fused"]) + plan.tp + 5.0 * (plan.knobs.get("channels") == 16)
    return Observation(plan=plan, verdict=Verdict.OK, score=score, step_time_s=100.0 / score, peak_bytes=3e10)


def history_of(task: Task, count: int) -> list[Observation]:
    return [outcome(plan) for plan in create_search("random", seed=5, options={}).ask(task, [], count).plans]


def ask(kind: str, task: Task, seen: Sequence[Observation], n: int, seed: int = 0) -> list[Plan]:
    return create_search(kind, seed=seed, options={}).ask(task, seen, n).plans


@searched(*(("layouts", told) for told in (0, 3, 30)), *((name, told) for name in KNOBS for told in (0, 12)))
def test_a_batch_is_of_distinct_legal_unseen_plans_the_same_each_time(kind, task, number, named) -> None:
    task = named(task)
    seen, size = history_of(task, number), 3 if task.space.knobs else 8
    search = create_search(kind, seed=0, options={})
    plans = search.ask(task, seen, size).plans
    assert len(set(plans)) == len(plans) == size
    assert all(plan in task.space for plan in plans)
    assert not {one.plan for one in seen} & set(plans)
    assert search.ask(task, seen, size).plans == plans
    assert ask(kind, task, seen, size) == plans


@pytest.mark.parametrize("kind", SEEDED)
@pytest.mark.parametrize(("task", "told"), [("layouts", 0), ("layouts", 30), ("many", 12)])
def test_another_seed_gives_other_plans(kind, task, told, named) -> None:
    task = named(task)
    seen = history_of(task, told)
    assert len({tuple(ask(kind, task, seen, 2 if task.space.knobs else 4, seed)) for seed in range(4)}) > 1


@searched(*((name, batch) for name in ("sixteen", "few") for batch in (1, 5)))
def test_an_exhausted_space_was_visited_once_and_gives_nothing(kind, task, number, named) -> None:
    task, search, seen = named(task), create_search(kind, seed=0, options={}), list[Observation]()
    while plans := search.ask(task, seen, number).plans:
        seen += [outcome(plan) for plan in plans]
        assert len(seen) <= task.space.plans
    assert len({one.plan for one in seen}) == len(seen) == task.space.plans
    assert all(one.plan in task.space for one in seen)


@searched(("layouts", 0), ("layouts", 30), ("many", 12))
def test_workers_that_ask_one_after_the_other_get_different_plans(kind, task, number, named) -> None:
    task, search = named(task), create_search(kind, seed=0, options={})
    seen = history_of(task, number)
    for _ in range(4 if task.space.knobs else 6):
        (plan,) = search.ask(task, seen, 1).plans
        assert plan not in {one.plan for one in seen}
        seen.append(Observation(plan=plan))


FAILED = [verdict for verdict in Verdict if verdict is not Verdict.OK]


@searched(*(("layouts", at) for at in range(len(FAILED))), *((name, FAILED.index(Verdict.OOM)) for name in KNOBS))
def test_a_history_without_a_success_still_gives_plans(kind, task, number, named) -> None:
    task = named(task)
    told = history_of(task, 5 if task.space.knobs else 20)
    seen = [Observation(plan=one.plan, verdict=FAILED[number]) for one in told]
    plans = ask(kind, task, seen, 3)
    assert len(set(plans) - {one.plan for one in seen}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_or_cancelled_plan_is_not_proposed_again(kind: str, sixteen: Task) -> None:
    space = sixteen.space
    gone = [Observation(plan=space[0], verdict=Verdict.LOST), Observation(plan=space[1], verdict=Verdict.CANCELLED)]
    plans = ask(kind, task_of(space), [*gone, *map(outcome, space[2:5])], len(space))
    assert set(plans) == set(space[5:])


@pytest.mark.parametrize("kind", KINDS)
def test_seen_plans_outside_of_the_space_are_tolerated(kind: str, space: Space) -> None:
    inside = history_of(task_of(space), 25)
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
    plans = ask(kind, task_of(space), seen, 4)
    assert len(set(plans)) == 4
    left = ask(kind, task_of(space), seen, len(space))
    assert set(left) == set(space) - {one.plan for one in inside}


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_space_gives_nothing(kind: str, make: MakeSpace) -> None:
    space = make(1, 8, Bounds(tp=(3,)))
    assert len(space) == 0
    assert ask(kind, task_of(space), [], 2) == []


@pytest.mark.parametrize("kind", KINDS)
def test_asking_leaves_no_file_and_no_trace_in_the_process(
    kind: str, space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, seen = create_search(kind, seed=0, options={}), history_of(task_of(space), 30)
    search.ask(task_of(space), seen, 2)  # the library's own import is not the ask
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    before = (os.getcwd(), random.getstate(), repr(np.random.get_state()))
    search.ask(task_of(space), seen, 2)
    assert (os.getcwd(), random.getstate(), repr(np.random.get_state())) == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["scratch", "work"]


@pytest.mark.parametrize("kind", MODELS)
def test_a_score_that_is_no_number_is_passed_over(kind: str, space: Space) -> None:
    seen = history_of(task_of(space), 30)
    seen.append(
        Observation(plan=ask(kind, task_of(space), seen, 1)[0], verdict=Verdict.OK, score=float("nan"), step_time_s=1.0)
    )
    (plan,) = ask(kind, task_of(space), seen, 1)
    assert plan not in {one.plan for one in seen}


def test_the_grid_keeps_the_order_of_the_space(space: Space) -> None:
    assert ask("grid", task_of(space), [outcome(space[1])], 3) == [space[0], space[2], space[3]]


@pytest.mark.parametrize("kind", FREE)
def test_seen_plans_with_other_knobs_are_tolerated(kind: str, many: Task) -> None:
    inside = history_of(many, 12)
    legal = inside[0].plan
    outside = [
        Plan(**{**legal.as_dict(), "knobs": {}}),
        Plan(**{**legal.as_dict(), "knobs": {**legal.knobs, "channels": 7}}),
        Plan(**{**legal.as_dict(), "knobs": {**legal.knobs, "unheard_of": 1}}),
    ]
    assert not any(plan in many.space for plan in outside)
    seen = [*inside, *(Observation(plan=plan, verdict=Verdict.OK, score=5.0, step_time_s=20.0) for plan in outside)]
    assert all(plan in many.space for plan in ask(kind, many, seen, 2))


def test_random_draws_all_plans_alike(few: Task) -> None:
    """Of a space too large to be put in order, too: a plan with inactive knobs is as probable as another one."""
    counts = dict.fromkeys((plan.key for plan in create_search("grid", seed=0, options={}).ask(few, [], 100).plans), 0)
    assert len(counts) == few.space.plans
    draws = in_random_order(few.space, 3)
    for _ in range(200 * len(counts)):
        counts[next(draws).key] += 1
    expected = np.full(len(counts), 200.0)
    squares = float(np.sum((np.array(list(counts.values())) - expected) ** 2 / expected))
    assert squares < stats.chi2.isf(1e-4, len(counts) - 1)


def test_the_grid_takes_one_layout_after_the_other_the_last_knob_fastest(few: Task) -> None:
    plans = ask("grid", few, [], few.space.plans)
    layouts = [few.space.index_of(plan) for plan in plans]
    assert layouts == sorted(layouts)
    told = [dict(plan.knobs) for plan in plans if plan.layout == plans[-1].layout][:4]
    assert told == [
        {"fused": False, "overlap": "off"},
        {"chunks": 1, "fused": False, "overlap": "ring"},
        {"chunks": 2, "fused": False, "overlap": "ring"},
        {"chunks": 8, "fused": False, "overlap": "ring"},
    ]


def test_the_grid_is_lazy_where_there_are_very_many_plans(many: Task) -> None:
    first = ask("grid", many, [], 2)
    assert first[0].layout == many.space[0].layout
    assert first[0].knobs["channels"] == 2
    assert sum(first[0].knobs[name] != first[1].knobs[name] for name in first[0].knobs) == 1


@pytest.mark.parametrize("kind", [pytest.param("deephyper", marks=pytest.mark.long), "optuna"])
def test_a_search_finds_the_knobs_that_help_among_a_thousand_million_plans(kind: str, many: Task) -> None:
    search, seen = create_search(kind, seed=1, options={"n_initial": 5}), list[Observation]()
    for _ in range(30):
        seen += [outcome(plan) for plan in search.ask(many, seen, 1).plans]
    late = [one.plan for one in seen[-10:]]
    assert sum(plan.knobs["fused"] is True for plan in late) >= 7
    assert sum(one.score is None for one in seen[-10:]) <= 4
