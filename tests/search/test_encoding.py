"""What a surrogate sees of a plan identifies it, and nothing in it is derived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshtune.search_spaces.plan import Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.library.encoding import Encoding

MakeSpace = Callable[[int, int | None, Bounds], Space]


def test_features_lead_back_to_the_plan(space: Space) -> None:
    encoding = Encoding.of(space)
    for index, plan in enumerate(space):
        features = encoding.features(index)
        assert encoding.encode(plan) == features
        assert encoding.index_of(features) == index


def test_degrees_are_log2_stages_numbers_and_the_rest_categories(space: Space) -> None:
    encoding = Encoding.of(space)
    assert encoding.choices["tp"] == (0.0, 1.0, 2.0, 3.0)
    assert encoding.choices["zero_stage"] == (0.0, 1.0)
    assert encoding.choices["schedule"] == ("gpipe", "1f1b")


def test_derived_and_constant_fields_are_left_out(space: Space) -> None:
    encoding = Encoding.of(space)
    assert set(encoding.choices) == {"tp", "pp", "micro_batch_size", "zero_stage", "schedule"}
    assert encoding.fixed == {
        "cp": 0.0,
        "ep": 0.0,
        "vpp": 0.0,
        "recompute": "none",
        "sequence_parallel": 1.0,
        "recompute_interval": 0.0,
        "context": "all_gather",
    }


def test_accumulation_is_searched_where_the_batch_is_free(make: MakeSpace) -> None:
    assert "grad_accum_steps" in Encoding.of(make(1, None, Bounds())).choices


def test_degrees_that_are_no_powers_of_two_keep_their_distance(make: MakeSpace) -> None:
    encoding = Encoding.of(make(1, 24, Bounds(micro_batch_size=(1, 2, 3))))
    assert encoding.choices["micro_batch_size"] == pytest.approx((0.0, 1.0, 1.585), abs=1e-3)


def test_a_plan_with_an_unknown_or_another_fixed_value_has_no_features(space: Space) -> None:
    encoding = Encoding.of(space)
    assert encoding.encode(replace(space[0], micro_batch_size=5)) is None
    assert encoding.encode(replace(space[0], recompute=Recompute.FULL)) is None


def test_features_that_no_legal_plan_has_lead_nowhere(space: Space) -> None:
    encoding = Encoding.of(space)
    features = encoding.encode(replace(space[0], tp=8, pp=8))
    assert features is not None
    assert encoding.index_of(features) is None


def test_points_span_the_unit_interval_and_categories_are_one_apart(make: MakeSpace) -> None:
    schedules = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
    space = make(1, 16, Bounds(tp=(1,), pp=(2,), micro_batch_size=(1,), zero_stage=(0,), schedule=schedules))
    encoding = Encoding.of(space)
    first, second = encoding.points()
    assert np.linalg.norm(first - second) == pytest.approx(1.0)
    assert np.array_equal(encoding.point(encoding.features(1)), second)
