"""The library's importances, where the answer is known."""

from __future__ import annotations

from itertools import product

import pytest

from meshtune.search_spaces.plan import Recompute
from meshtune.tuner.results.analysis.knob_importance import importances

KNOBS = {
    "tp": (1, 2, 4, 8),
    "micro_batch_size": (1, 2, 4),
    "recompute": tuple(Recompute),
    "sequence_parallel": (False, True),
}
POINTS = [dict(zip(KNOBS, values, strict=True)) for values in product(*KNOBS.values())]


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_that_alone_decides_takes_all(knob):
    found = importances(POINTS, [float(KNOBS[knob].index(point[knob])) for point in POINTS])
    assert next(iter(found)) == knob
    assert found[knob] > 0.99
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) == set(KNOBS)


def test_shares_are_those_of_the_variance():
    # Two values 4 apart beside two that are 2 apart: variances of 4 and 1.
    points = [{"tp": tp, "pp": pp, "zero_stage": zero} for tp, pp, zero in product((1, 8), (1, 4), (0, 1))]
    found = importances(points, [4.0 * (point["tp"] == 8) + 2.0 * (point["pp"] == 1) for point in points])
    assert found["tp"] == pytest.approx(0.8, abs=0.1)
    assert found["pp"] == pytest.approx(0.2, abs=0.1)
    assert found["zero_stage"] == pytest.approx(0.0, abs=0.02)


def test_a_value_far_from_the_others_weighs_no_more_than_they():
    near = [{"tp": tp, "pp": pp} for tp, pp in product((1, 2, 3), (1, 2))]
    far = [{**point, "tp": {1: 1, 2: 2, 3: 512}[point["tp"]]} for point in near]
    values = [float(point["tp"] == 2) + 0.5 * point["pp"] for point in near]
    assert importances(far, values) == importances(near, values)
