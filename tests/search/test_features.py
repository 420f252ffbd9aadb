"""Degrees of which 0 stands for another one count by their ratio to it, as degrees do, for every search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.library.encoding import Encoding
from meshtune.tuner.search.physics.prior import PER_FACTOR, rows_of

MakeSpace = Callable[[int, int | None, Bounds], Space]


@pytest.fixture(scope="module")
def grouped(make: MakeSpace) -> Space:
    """Experts on 16 devices, of which groups shard, and which tensor parallelism cuts more or less than the rest."""
    context = make(2, 64, Bounds()).context
    able = replace(context.capabilities, experts=True, expert_parallel=True, expert_folding=True)
    able = replace(able, zero_groups=frozenset({1}))
    context = replace(context, model=replace(context.model, experts=8, top_k=2), capabilities=able)
    bounds = Bounds(pp=(1, 2), ep=(1, 2), etp=(0, 1, 2, 4), zero_stage=(0, 1), zero_group=(0, 2, 4, 8))
    return Space(replace(bounds, micro_batch_size=(1,)), context)


def test_a_surrogate_sees_the_ratio_and_finds_each_plan_again(grouped: Space) -> None:
    encoding = Encoding.of(grouped)
    assert encoding.choices["zero_group"] == (0.0, 1.0, 2.0, 3.0)
    assert encoding.choices["etp"] == (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
    for index, plan in enumerate(grouped):
        features = encoding.encode(plan)
        assert features == encoding.features(index)
        assert encoding.index_of(features) == index
    whole = next(plan for plan in grouped if plan.zero_stage == 1 and plan.dp == 16 and not plan.etp)
    part = encoding.encode(replace(whole, zero_group=4))
    assert part == {**encoding.encode(whole), "zero_group": 2.0}


def test_where_a_space_has_no_values_of_them_they_are_no_features(make: MakeSpace) -> None:
    encoding = Encoding.of(make(2, 64, Bounds()))
    assert (encoding.fixed["zero_group"], encoding.fixed["etp"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("other", "doublings"),
    [({"zero_group": 8}, 1), ({"zero_group": 2}, 3), ({"etp": 2}, 1), ({"etp": 1}, 2), ({"etp": 8}, 1)],
    ids=str,
)
def test_the_physics_search_sees_plans_as_far_apart_as_by_other_degrees(
    grouped: Space, task: Callable[..., Task], other: dict[str, int], doublings: int
) -> None:
    usual = Plan(tp=4, dp=16, zero_stage=1)
    plans = [usual, replace(usual, **other), replace(usual, micro_batch_size=2**doublings)]
    features = rows_of(task(grouped).training, columns_of(plans)).features
    apart = np.linalg.norm(features[1:] - features[0], axis=1)
    assert apart == pytest.approx(doublings * PER_FACTOR)
