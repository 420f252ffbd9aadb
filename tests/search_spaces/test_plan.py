"""A Plan that breaks its own rules cannot be built, and its sizes, key and plain form follow from its fields."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.plan import PLAN_FIELDS, ContextParallel, Plan, Recompute, Schedule

VALUES = {
    "first_stage_less_layers": st.integers(0, 64),
    "last_stage_less_layers": st.integers(0, 64),
    "zero_stage": st.integers(0, 3),
    "etp": st.integers(0, 64),
    "zero_group": st.integers(0, 64),
    "recompute": st.sampled_from(Recompute),
    "schedule": st.sampled_from(Schedule),
    "sequence_parallel": st.booleans(),
    "context": st.sampled_from(ContextParallel),
}
DEGREES = [name for name in PLAN_FIELDS if name not in VALUES]
plans = st.builds(Plan, **VALUES, **{name: st.integers(1, 64) for name in DEGREES})


@pytest.mark.parametrize("name", DEGREES)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "must be at least 1, not 0"),
        (-4, "must be at least 1, not -4"),
        (2**31, "must be at most 2147483647, not 2147483648"),
        (1.0, "must be an integer, not 1.0"),
        (True, "must be an integer, not True"),
        ("2", "must be an integer, not '2'"),
    ],
)
def test_a_degree_that_is_no_positive_integer_is_refused(name, value, message):
    with pytest.raises(InvalidValue, match=f"^{name}: {message}$"):
        Plan(**{name: value})


def test_every_mistake_is_told_at_once_with_its_path():
    with pytest.raises(InvalidValue) as caught:
        Plan(tp=0, micro_batch_size=-1, zero_stage=9, recompute="some", schedule="never", sequence_parallel=1)
    assert [problem.path for problem in caught.value.problems] == [
        *("tp", "micro_batch_size", "zero_stage", "recompute", "schedule", "sequence_parallel")
    ]
    assert "schedule: must be one of gpipe, 1f1b, interleaved, zero_bubble, zbv, not 'never'" in str(caught.value)


def test_the_sizes_follow_from_the_degrees():
    plan = Plan(tp=2, pp=3, dp=5, cp=7, ep=5, vpp=11, micro_batch_size=13, grad_accum_steps=17)
    assert plan.world_size == 2 * 3 * 5 * 7
    assert plan.global_batch_size == 13 * 17 * 5


def test_the_key_is_canonical_and_leaves_defaults_out():
    assert Plan().key == "tp1 pp1 dp1 mbs1 ga1 zero0"
    assert Plan(tp=8, dp=2, micro_batch_size=4, recompute="full", vpp=2, schedule="interleaved", ep=2, cp=4).key == (
        "tp8 pp1 dp2 cp4 ep2 vpp2 mbs4 ga1 zero0 recompute-full interleaved"
    )


@given(plans, plans)
def test_plans_are_equal_exactly_when_their_keys_are(one, other):
    assert (one == other) == (one.key == other.key)
    assert Plan(**one.as_dict()).key == one.key


@given(plans)
def test_the_plain_form_survives_json(plan):
    plain = plan.as_dict()
    assert list(plain) == [*PLAN_FIELDS, "knobs"]
    assert {type(plain[name]) for name in PLAN_FIELDS} == {int, str, bool}
    assert Plan(**json.loads(json.dumps(plain))) == plan
