"""The borrowed searches beyond the contract: Optuna's Gaussian process, and two objectives at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import log2
from statistics import mean
from typing import Any

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, SearchMisconfigured, Task
from meshtune.tuner.search.registry import create_search

GIB = 2**30
SEARCHES = [
    ("deephyper", {}),
    ("optuna", {"sampler": "tpe"}),
    pytest.param("optuna", {"sampler": "gp"}, marks=pytest.mark.long),
]


def gp(seed: int = 0) -> Any:
    return create_search("optuna", seed=seed, options={"sampler": "gp"})


@pytest.fixture(scope="module")
def small(make: Callable[[int, int | None, Bounds], Space]) -> Space:
    return make(1, 64, Bounds(recompute=tuple(Recompute), zero_stage=(0, 1)))


@pytest.mark.parametrize("told", [1, 12])
def test_the_gaussian_process_gives_distinct_legal_unseen_plans_and_the_same_ones_again(
    told: int, small: Space, task: Callable[..., Task]
) -> None:
    seen = [conflicting(plan) for plan in small[:: len(small) // told][:told]]
    plans = gp().ask(task(small), seen, 2).plans
    assert len(set(plans)) == len(plans) == 2
    assert all(plan in small for plan in plans)
    assert not {one.plan for one in seen} & set(plans)
    assert gp().ask(task(small), seen, 2).plans == plans


def test_the_gaussian_process_keeps_away_from_plans_under_way(small: Space, task: Callable[..., Task]) -> None:
    seen = [conflicting(plan) for plan in small[::6]]
    (first,) = gp().ask(task(small), seen, 1).plans
    (second,) = gp().ask(task(small), [*seen, Observation(plan=first)], 1).plans
    assert second not in {first, *(one.plan for one in seen)}


def test_the_gaussian_process_visits_every_plan_of_a_space_once(
    make: Callable[[int, int | None, Bounds], Space], task: Callable[..., Task]
) -> None:
    space = make(1, 16, Bounds(tp=(1, 2), zero_stage=(0, 1), micro_batch_size=(1, 2)))
    seen = list[Observation]()
    while plans := gp().ask(task(space), seen, 3).plans:
        seen += [Observation(plan=plan, verdict=Verdict.OK, score=1.0 + plan.tp) for plan in plans]
    assert sorted(one.plan.key for one in seen) == sorted(plan.key for plan in space)


def test_without_torch_only_the_gaussian_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SearchMisconfigured, match=r"sampler gp needs PyTorch.*pip install 'meshtune.torch.'"):
        gp()
    create_search("optuna", seed=0, options={"sampler": "tpe"})


def hypervolume(seen: Sequence[Observation]) -> float:
    """What the measured plans dominate of score times memory left over of 40 GiB."""
    area, reached = 0.0, 0.0
    known = [(one.score, 40.0 - one.peak_bytes / GIB) for one in seen if one.score is not None and one.peak_bytes]
    for score, left in sorted(known, reverse=True):
        area += score * max(0.0, left - reached)
        reached = max(reached, left)
    return area


def conflicting(plan: Plan) -> Observation:
    """Larger micro-batches are faster and fuller, up to running out; all else has one best value for both."""
    share = log2(plan.micro_batch_size) / 4
    off = 1 + 0.1 * abs(log2(plan.tp) - 1) + 0.2 * (plan.recompute is not Recompute.NONE) + 0.1 * (plan.zero_stage == 0)
    peak_bytes = (4 + 30 * share) * off * GIB
    if peak_bytes > 40 * GIB:
        return Observation(plan=plan, verdict=Verdict.OOM)
    return Observation(plan=plan, verdict=Verdict.OK, score=1000 * (0.2 + 0.8 * share) / off, peak_bytes=peak_bytes)


@pytest.mark.parametrize(("kind", "options"), SEARCHES)
def test_a_pareto_search_dominates_more_than_random_and_than_one_for_the_score_alone(
    kind: str, options: dict[str, Any], small: Space, task: Callable[..., Task]
) -> None:
    def dominated(kind: str, options: dict[str, Any], pareto: bool) -> float:
        areas = []
        for seed in range(6):
            search, seen = create_search(kind, seed=seed, options=options), list[Observation]()
            for _ in range(25):
                seen.append(conflicting(search.ask(task(small, pareto=pareto), seen, 1).plans[0]))
            areas.append(hypervolume(seen))
        return mean(areas)

    front = dominated(kind, options, pareto=True)
    assert front > dominated("random", {}, pareto=True)
    assert front > dominated(kind, options, pareto=False)
