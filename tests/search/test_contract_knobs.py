"""The contract of searches over spaces with knobs: few plans, which can be exhausted, and 10^9 of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.listing import in_random_order
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Observation, Task, task_of
from meshtune.tuner.search.registry import SEARCHES, create_search
from meshtune.tuner.specs.read import read_spec

KINDS = [kind for kind in sorted(SEARCHES) if kind != "calibration"]
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


def make(knobs: dict[str, Any], **space: Any) -> Task:
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
    return task_of(spec, found, training_of(spec))


@pytest.fixture(scope="module")
def few() -> Task:
    """26 plans."""
    return make(FEW, tp=[1, 2], pp=[2], micro_batch_size=[1], zero_stage=[0, 1])


@pytest.fixture(scope="module")
def many() -> Task:
    task = make(MANY)
    assert task.space.plans > 1e9
    return task


@pytest.fixture(scope="module")
def sizes() -> Task:
    return make({"nodes": {"values": [2, 4]}, "fused": {"values": [False, True]}}, tp=[2, 4], zero_stage=[1])


@pytest.fixture(params=["few", "many", "sizes"])
def task(request: pytest.FixtureRequest) -> Task:
    found: Task = request.getfixturevalue(request.param)
    return found


def outcome(plan: Plan) -> Observation:
    """What is fused is faster; larger micro-batches do not fit."""
    if plan.micro_batch_size > 1:
        return Observation(plan=plan, verdict=Verdict.OOM)
    score = 100.0 + 30.0 * bool(plan.knobs["fused"]) + plan.tp + 5.0 * (plan.knobs.get("channels") == 16)
    return Observation(plan=plan, verdict=Verdict.OK, score=score, step_time_s=100.0 / score, peak_bytes=3e10)


def history(task: Task, count: int) -> list[Observation]:
    return [outcome(plan) for plan in create_search("random", seed=5, options={}).ask(task, [], count).plans]


def ask(kind: str, task: Task, seen: Sequence[Observation], n: int, seed: int = 0) -> list[Plan]:
    return create_search(kind, seed=seed, options={}).ask(task, seen, n).plans


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", [0, 12])
def test_a_batch_is_of_distinct_legal_unseen_plans_the_same_each_time(kind: str, told: int, task: Task) -> None:
    seen = history(task, told)
    plans = ask(kind, task, seen, 3)
    assert len(set(plans)) == len(plans) == 3
    assert all(plan in task.space for plan in plans)
    assert not {one.plan for one in seen} & set(plans)
    assert ask(kind, task, seen, 3) == plans


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("grid", "physics")])
def test_another_seed_gives_other_plans(kind: str, many: Task) -> None:
    seen = history(many, 12)
    assert len({tuple(ask(kind, many, seen, 2, seed)) for seed in range(3)}) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 5])
def test_an_exhausted_space_was_visited_once_and_gives_nothing(kind: str, batch: int, few: Task) -> None:
    seen = list[Observation]()
    while plans := ask(kind, few, seen, batch):
        seen += [outcome(plan) for plan in plans]
        assert len(seen) <= few.space.plans
    assert len({one.plan for one in seen}) == len(seen) == few.space.plans


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_ask_one_after_the_other_get_different_plans(kind: str, many: Task) -> None:
    search, seen = create_search(kind, seed=0, options={}), history(many, 12)
    for _ in range(4):
        (plan,) = search.ask(many, seen, 1).plans
        assert plan not in {one.plan for one in seen}
        seen.append(Observation(plan=plan))


@pytest.mark.parametrize("kind", KINDS)
def test_a_history_without_a_success_still_gives_plans(kind: str, task: Task) -> None:
    seen = [Observation(plan=one.plan, verdict=Verdict.OOM) for one in history(task, 5)]
    plans = ask(kind, task, seen, 2)
    assert len(set(plans) - {one.plan for one in seen}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_seen_plans_with_other_knobs_are_tolerated(kind: str, many: Task) -> None:
    inside = history(many, 12)
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
    # Chi-squared over 25 degrees of freedom, at 1e-4.
    assert float(np.sum((np.array(list(counts.values())) - expected) ** 2 / expected)) < 62.0


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


@pytest.mark.parametrize("kind", ["deephyper", "optuna"])
def test_a_search_finds_the_knobs_that_help_among_a_thousand_million_plans(kind: str, many: Task) -> None:
    search, seen = create_search(kind, seed=1, options={"n_initial": 5}), list[Observation]()
    for _ in range(30):
        seen += [outcome(plan) for plan in search.ask(many, seen, 1).plans]
    late = [one.plan for one in seen[-10:]]
    assert sum(plan.knobs["fused"] is True for plan in late) >= 7
    assert sum(one.score is None for one in seen[-10:]) <= 4
