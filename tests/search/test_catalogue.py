"""Rows of legal plans, of plans outside of the space, and of earlier campaigns' plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import PastCampaign, Task
from meshtune.tuner.search.physics import catalogue as module
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.prior import Rows, rows_of


@pytest.fixture
def outside(space: Space, make: Callable[[int, int | None, Bounds], Space]) -> list[Plan]:
    """Plans that are not legal in the space."""
    return [plan for plan in make(1, 128, Bounds(micro_batch_size=(16, 32))) if plan not in space][:3]


def same(one: Rows, other: Rows) -> bool:
    return all(np.allclose(getattr(one, name), getattr(other, name), rtol=1e-12) for name in Rows.__slots__)


def plainly(task: Task, plans: list[Plan], campaign: int = 0) -> Rows:
    training = task.past[campaign - 1].training if campaign else task.training
    return rows_of(training, columns_of(plans), campaign)


def test_rows_stand_in_the_order_asked_for_whether_legal_or_not(
    space: Space, outside: list[Plan], task: Callable[..., Task]
) -> None:
    catalogue = Catalogue(task(space), rows_of)
    assert len(outside) == 3
    plans = [space[7], outside[0], space[2], outside[0], space[7]]
    assert same(catalogue.rows(plans), plainly(task(space), plans))
    more = [outside[2], space[2], outside[0]]
    assert same(catalogue.rows(more), plainly(task(space), more))
    assert same(catalogue.rows([]), plainly(task(space), []))


def test_plans_of_earlier_campaigns_are_what_the_physics_says_of_them_there(
    space: Space, task: Callable[..., Task]
) -> None:
    larger = task(space).training
    larger = replace(larger, cluster=replace(larger.cluster, nodes=2))
    warm = task(space, past=(PastCampaign(training=larger, seen=()),))
    catalogue, plans = Catalogue(warm, rows_of), [space[5], space[6]]
    assert same(catalogue.rows(plans, 1), plainly(warm, plans, 1))
    assert not same(catalogue.rows(plans, 1), catalogue.rows(plans))


def test_a_large_space_has_slopes_only_for_the_plans_that_are_asked_for(
    space: Space, task: Callable[..., Task], monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "MAX_SLOPED", len(space) - 1)
    catalogue, plans = Catalogue(task(space), rows_of), [space[8], space[1]]
    assert catalogue.legal.step_slopes.shape == (len(space), 0)
    assert same(catalogue.rows(plans), plainly(task(space), plans))
    assert same(catalogue.sloped(np.array([8, 1])), plainly(task(space), plans))


def test_unseen_is_every_legal_plan_but_those_given(
    space: Space, outside: list[Plan], task: Callable[..., Task]
) -> None:
    catalogue = Catalogue(task(space), rows_of)
    left = catalogue.unseen([space[0], outside[0], space[4], space[4]]).tolist()
    assert left == [at for at in range(len(space)) if at not in (0, 4)]
