"""Plans as people write them: every key is read back, short names stand for fields, ambiguous names are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.plan import AXES, Plan
from meshtune.search_spaces.plan_names import SHORT_NAMES, in_full
from meshtune.tuner.specs.document import InvalidSpec, changed_document
from meshtune.tuner.specs.knobs import plan_fields
from meshtune.tuner.specs.read import read_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
KNOBS = KnobSet(
    [
        Knob(name="fast", values=(False, True), env="FAST"),
        Knob(name="threads", values=(1, 2.5, "auto"), env="THREADS"),
        # Words that are like parts of a plan, and commas.
        Knob(name="cores", values=("0,2", "0", "tp8", "gpipe", "nosp"), env="CORES"),
        Knob(name="tp8", values=(0, 1), env="TP8"),
        Knob(name="nosp", values=("a", "b,c"), env="NOSP"),
        # Of a campaign that was stored before short names were read.
        Knob(name="ga", values=(1, 2), env="GA"),
    ]
)


def values_of(axis):
    if axis.members or axis.kind is bool:
        return st.sampled_from(axis.members or (False, True))
    return st.integers(axis.low, axis.high or 10**6)


def plans():
    axes = st.fixed_dictionaries({axis.name: values_of(axis) for axis in AXES})
    knobs = st.fixed_dictionaries({}, optional={knob.name: st.sampled_from(knob.values) for knob in KNOBS})
    return st.builds(lambda fields, values: Plan(**fields, knobs=values), axes, knobs)


@settings(max_examples=300, deadline=None, database=None)
@given(plans())
def test_the_key_of_every_plan_is_read_back(plan):
    read = plan_fields(plan.key, KNOBS)
    assert Plan(**read) == plan
    commas = in_full(plan.layout.key.replace(" ", ","))
    assert {name: str(value) for name, value in commas.items()} == {
        name: str(value) for name, value in in_full(plan.layout.key).items()
    }


@pytest.mark.parametrize("file", ["demo.yaml", "knobs.yaml", "moe-ep.yaml", "llama3-8b-h100.yaml"])
def test_the_keys_that_a_space_lists_are_read_back_as_its_plans(file):
    _, space = read_spec(yaml.safe_load((EXAMPLES / file).read_text()), None)
    rows, codes = space.listing(10**6)
    for at in range(0, len(rows), max(1, len(rows) // 300)):
        plan = space.plan(int(rows[at]), codes[at].tolist())
        assert space.complete(**plan_fields(plan.key, space.knobs)) == plan


def test_short_names_are_those_that_keys_print():
    key = Plan(**{axis.name: 3 for axis in AXES if axis.kind is int}).key
    for short, name in SHORT_NAMES.items():
        axis = next(axis for axis in AXES if axis.name == name)
        if axis.kind is int:
            assert any(word.rstrip("0123456789").rstrip("-") == short for word in key.split()), (short, key)
    assert SHORT_NAMES["mbs"] == "micro_batch_size"
    assert SHORT_NAMES["last"] == "last_stage_less_layers"


@pytest.mark.parametrize(
    "given",
    ["mbs=2,tp=4", "tp4 mbs2", "tp4, micro_batch_size=2", {"mbs": 2, "tp": 4}, {"micro_batch_size": "2", "tp": 4}],
)
def test_forms_mean_one_plan(given):
    assert plan_fields(given) == {"micro_batch_size": 2, "tp": 4}


def test_knobs_stand_beside_fields_or_inside():
    assert plan_fields("tp2 cores=0,2 fast=true", KNOBS) == {"tp": 2, "knobs": {"cores": "0,2", "fast": True}}
    assert plan_fields("tp=2,cores=0,fast=true", KNOBS) == {"tp": 2, "knobs": {"cores": "0", "fast": True}}
    assert plan_fields({"mbs": 1, "fast": True, "knobs": {"threads": 1}}, KNOBS) == {
        "micro_batch_size": 1,
        "knobs": {"fast": True, "threads": 1},
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("tp8 tp=4", "tp: stands twice, as 8 and as 4"),
        ({"mbs": 1, "micro_batch_size": 2}, "micro_batch_size: stands twice, as 1 and as 2"),
        ("tp8 mbz=2", "mbz: is not a known key"),
        ("tp8 gpipes", "gpipes: is not a known key"),
        ("zero7", "zero_stage: must be 0, 1, 2 or 3, not 7"),
        ("fast=true fast=false", "fast: stands twice"),
    ],
)
def test_what_is_no_plan_is_refused_by_field(given, words):
    with pytest.raises(InvalidValue) as refused:
        plan_fields(given, KNOBS)
    assert words in str(refused.value)


def test_a_new_knob_with_a_short_name_of_a_field_is_refused_with_both_names():
    with pytest.raises(InvalidSpec) as refused:
        read_spec({**toy.SPEC, "knobs": {"ga": {"values": [1, 2], "env": "GA"}}}, None)
    assert str(refused.value) == "knobs.ga: is short for grad_accum_steps: call the knob otherwise"


def test_a_spec_has_short_names_one_value_for_a_list_and_a_baseline_as_it_is_printed():
    long = {"space": {"tp": [2], "micro_batch_size": [1, 2], "zero_stage": [0]}, "baseline": {"micro_batch_size": 2}}
    short = {"space": {"tp": 2, "mbs": [1, 2], "zero": 0}, "baseline": "mbs2"}
    spec, space = read_spec({**toy.SPEC, **long}, None)
    assert read_spec({**toy.SPEC, **short}, None)[0] == spec
    whole = {**short, "baseline": spec.baseline.key}
    assert read_spec({**toy.SPEC, **whole}, None)[0] == spec
    knob = {"env": "FAST", "values": True}
    read, space = read_spec({**toy.SPEC, "knobs": {"fast": knob}, "baseline": f"{spec.baseline.key} fast=true"}, None)
    assert (space.knobs[0].values, dict(read.baseline.knobs)) == ((True,), {"fast": True})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {"tp": {}}}, "space.tp: must be a list, not {}"),
        ({"space": {"mbs": 0}}, "space.micro_batch_size: must be between 1 and 1000000, not 0"),
        ({"space": {"mbs": 1, "micro_batch_size": 2}}, "space.micro_batch_size: stands twice, as 1 and as 2"),
        ({"space": "tp8"}, "space: must be a mapping of keys, not 'tp8'"),
        ({"baseline": "tp8 gpipes"}, "baseline.gpipes: is not a known key"),
    ],
)
def test_mistakes_in_a_spec_have_their_paths(changes, words):
    with pytest.raises(InvalidSpec) as refused:
        read_spec({**toy.SPEC, **changes}, None)
    assert words in str(refused.value)


def test_changes_of_a_spec_may_have_short_names_where_the_spec_has_the_long_ones():
    document = {"space": {"micro_batch_size": [1, 2], "tp": [1]}, "workload": {"ga": 1}}
    changes = {"space": {"mbs": 4}, "workload": {"mbs": 1}}
    assert changed_document(document, changes) == {
        "space": {"micro_batch_size": 4, "tp": [1]},
        "workload": {"ga": 1, "mbs": 1},
    }
