"""Listings: plans of a space with knobs, all or some of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from meshtune.search_spaces.bounds import Bounds
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.listing import Listing, in_order, in_random_order, whole
from meshtune.search_spaces.space import Space

KNOBS = KnobSet(
    [
        Knob(name="overlap", values=("off", "ring"), env="OVERLAP", when="tp > 1"),
        Knob(name="chunks", values=(1, 2, 4), env="CHUNKS", when="overlap == ring"),
        Knob(name="channels", values=(4, 8, 16), env="CHANNELS", default=8),
    ]
)


@pytest.fixture
def space(make_setting: Callable[..., SpaceContext]) -> Space:
    return Space(Bounds(micro_batch_size=(1, 2), zero_stage=(0, 1)), make_setting(), knobs=KNOBS)


def sample(space: Space, most: int = 60, seed: int = 0) -> Listing:
    return Listing.of(space, most, np.random.default_rng(seed), around=[space[3]], among=[space[7]])


def test_a_space_of_few_plans_is_listed_whole(space: Space) -> None:
    every = sample(space, most=10**6)
    assert every.complete
    assert len({*every}) == len(every) == space.plans
    assert [*in_order(space)] == sorted(every, key=lambda plan: every.find(plan) or 0)
    assert whole(space, space.plans - 1) is None


def test_of_many_plans_about_as_many_as_asked_for_are_listed_those_given_first(space: Space) -> None:
    some = sample(space)
    assert not some.complete
    assert 50 <= len({*some}) == len(some) <= 60
    assert all(plan in space for plan in some)
    assert some[0] == space[7]
    assert [*some] == [*sample(space)]
    assert [*some] != [*sample(space, seed=1)]


def test_what_is_beside_a_plan_is_listed(space: Space) -> None:
    some = sample(space, most=200)
    centre = space[3]
    for knob in space.knobs:
        for value in knob.values if knob.name in centre.knobs else ():
            beside = space.complete(**{**centre.axes_as_dict(), "knobs": {**centre.knobs, knob.name: value}})
            assert some.find(beside) is not None
    layouts = {plan.layout for plan in some if plan.knobs["channels"] == centre.knobs["channels"]}
    assert sum(layout.zero_stage != centre.zero_stage for layout in layouts) > 0


def test_a_plan_is_found_where_it_stands(space: Space) -> None:
    some = sample(space)
    assert [some.find(plan) for plan in some] == list(range(len(some)))
    missing = next(plan for plan in in_order(space) if plan not in set(some))
    assert some.find(missing) is None
    assert some[2:4] == [some[2], some[3]]


def test_columns_hold_the_layout_and_the_codes_of_knobs(space: Space) -> None:
    some = sample(space)
    assert set(some.dimensions) == {*space.dimensions, *KNOBS.names}
    for at, plan in enumerate(some):
        assert some.columns["tp"][at] == plan.tp
        assert some.columns["channels"][at] == KNOBS[2].values.index(plan.knobs["channels"]) + 1
        assert (some.columns["chunks"][at] > 0) == ("chunks" in plan.knobs)


def test_a_random_order_is_fixed_by_its_seed(space: Space) -> None:
    first = [*islice(in_random_order(space, 0), 50)]
    assert first == [*islice(in_random_order(space, 0), 50)]
    assert first != [*islice(in_random_order(space, 1), 50)]
    assert all(plan in space for plan in first)
