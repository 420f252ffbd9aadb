"""Knobs: their values in plans, what is active, and how many plans they make."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from meshtune.search_spaces.bounds import Bounds
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import SpaceContext, columns_of
from meshtune.search_spaces.knob import Direction, Knob, KnobKind
from meshtune.search_spaces.knob_values import KnobValues
from meshtune.search_spaces.knobs import KnobSet, sized, sizes_of
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.presets import knob_catalogs
from meshtune.search_spaces.space import Space

FP8 = Knob(name="fp8", values=("off", "tensorwise", "mxfp8"), env="FP8", omit="off")
BUDGET = Knob(name="ac_budget", values=(0.5, 0.8, 1.0), config="a.b", when="recompute == selective")
CHANNELS = Knob(name="channels", values=(4, 8), env="CHANNELS", when="nodes > 1 and fp8 != off")
DEVICES = Knob(name="devices", values=(2, 4))


@pytest.fixture
def space(make_setting: Callable[..., SpaceContext]) -> Space:
    knobs = KnobSet([FP8, BUDGET, CHANNELS])
    bounds = Bounds(micro_batch_size=(1, 2), recompute=(Recompute.NONE, Recompute.SELECTIVE), zero_stage=(0, 1))
    return Space(bounds, make_setting(nodes=2), knobs=knobs)


def every_plan(space: Space) -> list[Plan]:
    listing = space.listing(10**6)
    assert listing is not None
    return [space.plan(int(index), codes) for index, codes in zip(*listing, strict=True)]


def test_values_stand_in_the_key_and_make_plans_differ() -> None:
    one, other = Plan(knobs={"b": 0.5, "a": True}), Plan(knobs={"a": True, "b": 0.8})
    assert one.key == "tp1 pp1 dp1 mbs1 ga1 zero0 a=true b=0.5"
    assert one != other
    assert one == Plan(knobs={"a": True, "b": 0.5})
    assert len({one, other, Plan(knobs={"a": True, "b": 0.5})}) == 2
    assert one.layout == Plan()


def test_a_truth_value_is_no_number_in_a_plan() -> None:
    assert Plan(knobs={"a": True}) != Plan(knobs={"a": 1})
    assert Plan(knobs={"a": 1}).key != Plan(knobs={"a": True}).key


def test_values_cannot_be_changed_and_survive_copies() -> None:
    plan = Plan(knobs={"a": 1, "b": "x"})
    for change in (lambda: plan.knobs.update(a=2), lambda: plan.knobs.__setitem__("a", 2), lambda: plan.knobs.clear()):  # type: ignore[attr-defined]
        with pytest.raises(TypeError):
            change()
    for again in (
        pickle.loads(pickle.dumps(plan)),
        copy.deepcopy(plan),
        replace(plan),
        Plan(**json.loads(json.dumps(plan.as_dict()))),
    ):
        assert again == plan
        assert isinstance(again.knobs, KnobValues)
    assert asdict(plan)["knobs"] == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("knobs", "path"),
    [
        ({"tp": 1}, "knobs.tp"),
        ({"A": 1}, "knobs.A"),
        ({"a": None}, "knobs.a"),
        ({"a": "two words"}, "knobs.a"),
        ({"a": "x=y"}, "knobs.a"),
        ({"a": float("nan")}, "knobs.a"),
        ({"a": 2**60}, "knobs.a"),
    ],
)
def test_a_plan_refuses_what_is_no_knob(knobs: Any, path: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Plan(knobs=knobs)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_the_kind_and_the_default_follow_from_the_values() -> None:
    assert (BUDGET.kind, BUDGET.default) == (KnobKind.NUMERIC, 0.5)
    assert (FP8.kind, FP8.default) == (KnobKind.CATEGORICAL, "off")
    assert DEVICES.default == 4
    assert Knob(name="a", values=(1, 2), env="A", default=2).default == 2


def test_a_program_is_told_words_and_nothing_of_what_is_omitted() -> None:
    knob = Knob(name="a", values=(False, True, 3), argument="--a={value} -v", omit=False, words={"3": "three"})
    assert [knob.arguments(value) for value in knob.values] == [[], ["--a=true", "-v"], ["--a=three", "-v"]]
    assert FP8.told("off") is None
    assert FP8.told("mxfp8") == "mxfp8"


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"name": "tp"}, "", "is a field of every plan"),
        ({"name": "Fp8"}, "", "must be lower-case letters"),
        ({"values": ()}, "values", "at least one"),
        ({"values": (1, 1)}, "values", "twice: 1"),
        ({"values": ("a", "b", "a")}, "values", "twice: a"),
        ({"values": tuple(range(65))}, "values", "are 65, more than 64"),
        ({"default": 7}, "default", "7 is not among the values 1, 2"),
        ({"omit": 7}, "omit", "7 is not among the values 1, 2"),
        ({"env": "A", "config": "a.b"}, "", "not by env and config"),
        ({"env": "1 2"}, "env", "no name of a variable"),
        ({"argument": "--a {valu} {value}"}, "argument", "no other placeholder"),
        ({"argument": "--flag"}, "argument", "give `omit`"),
        ({"words": {"3": "x"}}, "words.3", "is no value"),
        ({"kind": "numeric", "values": ("a", "b")}, "kind", "numeric needs a number"),
        ({"memory": "some"}, "memory", "must be one of less, more"),
        ({"name": "nodes", "env": "A"}, "", "sizes the job"),
        ({"name": "nodes", "values": (1, 0.5)}, "values", "whole numbers"),
    ],
)
def test_a_wrong_knob_is_refused_with_its_path(changes: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Knob(**{"name": "a", "values": (1, 2), **changes})
    assert [(one.path, message in one.message) for one in refused.value.problems] == [(path, True)]


def test_mistakes_between_knobs_are_told_all_at_once() -> None:
    with pytest.raises(InvalidValue) as refused:
        KnobSet(
            [
                Knob(name="a", values=(1, 2), env="X", when="b == 1"),
                Knob(name="b", values=(1, 2), env="X", when="a == 1"),
                Knob(name="c", values=(1, 2), argument="--c={value}", when="fp9 == 1"),
                Knob(name="d", values=(1, 2), argument="--c {value}"),
                DEVICES,
                Knob(name="nodes", values=(1, 2)),
            ]
        )
    assert {(one.path, one.message.split(":")[0].split(" of ")[0]) for one in refused.value.problems} == {
        ("devices", "nodes and devices both size the job"),
        ("b.env", "X is set by the knob a, too"),
        ("d.argument", "--c is given by the knob c, too"),
        ("c.when", "at character 1"),
        ("a.when", "conditions in a circle"),
    }


def test_as_a_sequence_a_space_has_each_layout_once_with_its_knobs_at_their_defaults(space: Space) -> None:
    plans = list(space)
    assert len(plans) == len(space) == len({plan.layout for plan in plans})
    assert all(plan.knobs["fp8"] == "off" and "channels" not in plan.knobs for plan in plans)
    assert all(("ac_budget" in plan.knobs) == (plan.recompute is Recompute.SELECTIVE) for plan in plans)
    assert [space.index_of(plan) for plan in plans] == list(range(len(space)))


def test_all_plans_are_listed_each_once_as_many_as_are_counted(space: Space) -> None:
    plans = every_plan(space)
    assert len(plans) == len(set(plans)) == space.plans
    assert not any(space.explain(plan) for plan in plans)
    # By hand: every combination of values, without what is inactive.
    expected = set()
    for layout, fp8, budget, channels in product(space, FP8.values, BUDGET.values, CHANNELS.values):
        knobs: dict[str, Any] = {"fp8": fp8}
        if layout.recompute is Recompute.SELECTIVE:
            knobs["ac_budget"] = budget
        if fp8 != "off":
            knobs["channels"] = channels
        expected.add(replace(layout, knobs=knobs))
    assert set(plans) == expected
    assert space.listing(space.plans - 1) is None


def test_plans_are_counted_without_being_made(make_setting: Callable[..., SpaceContext]) -> None:
    many = [Knob(name=f"k{at}", values=tuple(range(10)), env=f"K{at}") for at in range(17)]
    space = Space(Bounds(micro_batch_size=(1,), zero_stage=(0,)), make_setting(nodes=2), knobs=KnobSet(many))
    assert space.plans == len(space) * 10**17


def test_why_a_plan_is_none_names_each_knob(space: Space) -> None:
    layout = next(plan for plan in space if plan.recompute is Recompute.NONE)

    def told(**knobs: Any) -> list[str]:
        return [one.message for one in space.explain(replace(layout, knobs=knobs))]

    assert told(fp8="off") == []
    assert told() == ["fp8 has no value, and is active"]
    assert told(fp8="fp9") == ["fp8(fp9) is not among off, tensorwise, mxfp8"]
    assert told(fp8="off", ac_budget=0.5) == ["ac_budget(0.5) is inactive: it needs recompute == selective"]
    assert told(fp8="off", channels=4) == ["channels(4) is inactive: it needs nodes > 1 and fp8 != off"]
    assert told(fp8="off", fp16=True) == ["fp16 is no knob of the spec; known: ac_budget, channels, fp8"]
    assert space.find(replace(layout, knobs={"fp8": "mxfp8"})) is None  # channels is active then
    assert space.find(replace(layout, knobs={"fp8": "mxfp8", "channels": 8})) == space.find(layout)


def test_a_plan_is_completed_by_the_defaults_of_active_knobs(space: Space) -> None:
    plan = space.complete(tp=1, recompute="selective", knobs={"fp8": "mxfp8"})
    assert plan.knobs == {"fp8": "mxfp8", "channels": 4, "ac_budget": 0.5}


def test_inactive_values_are_dropped_from_drawn_codes(space: Space) -> None:
    index = np.arange(len(space))
    codes = space.knobs.draw(space.columns, space.context.cluster.devices_per_node, np.random.default_rng(0))
    assert all(not space.explain(space.plan(at, codes[at])) for at in index.tolist())


def test_a_size_makes_plans_of_fewer_devices(make_setting: Callable[..., SpaceContext]) -> None:
    knobs = KnobSet([Knob(name="nodes", values=(1, 2)), Knob(name="a", values=(1, 2), env="A", when="nodes == 2")])
    context = make_setting(nodes=2)
    cluster = context.cluster
    context = replace(context, sizes=sizes_of(knobs, cluster))
    space = Space(Bounds(micro_batch_size=(1,), zero_stage=(0,)), context, knobs=knobs)
    plans = every_plan(space)
    per_node = cluster.devices_per_node
    assert {plan.world_size for plan in plans} == {per_node, 2 * per_node}
    assert all(plan.world_size == plan.knobs["nodes"] * per_node for plan in plans)
    assert all(("a" in plan.knobs) == (plan.knobs["nodes"] == 2) for plan in plans)
    assert len(set(plans)) == space.plans
    small = next(plan for plan in plans if plan.knobs["nodes"] == 1)
    assert sized(cluster, small).devices == per_node
    assert sized(cluster, Plan()) is cluster
    wrong = replace(small, knobs={"nodes": 2})
    assert [one.constraint for one in space.explain(wrong)] == ["knobs"]
    assert space.complete(tp=1, knobs={"nodes": 1}).world_size == per_node
    assert space.complete(tp=1).world_size == 2 * per_node


def test_sizes_that_the_cluster_does_not_have_are_refused(make_setting: Callable[..., SpaceContext]) -> None:
    cluster: ClusterSpec = make_setting(nodes=2).cluster
    with pytest.raises(InvalidValue, match=f"{10**6} nodes are more than the cluster's {cluster.nodes}"):
        sizes_of(KnobSet([Knob(name="nodes", values=(1, 10**6))]), cluster)


def test_the_values_of_a_part_of_a_node_are_sized_too(make_setting: Callable[..., SpaceContext]) -> None:
    cluster = make_setting(nodes=2).cluster
    part = sized(cluster, Plan(dp=2, knobs={"devices": 2}))
    assert (part.nodes, part.devices_per_node) == (1, 2)


def test_every_knob_of_every_catalog_is_one_and_goes_with_the_others_of_it() -> None:
    for catalog, own in knob_catalogs().items():
        # The conditions of those of CUDA and of CPUs name the trainer's others.
        knobs = {**(knob_catalogs()["trainer"] if catalog.startswith("trainer") else {}), **own}
        made = [Knob(**{"name": name, **entry, "values": tuple(entry["values"])}) for name, entry in knobs.items()]
        assert len(KnobSet(made)) == len(made) > 0, catalog
        for knob in made:
            assert all((knob.meaning, knob.source, knob.versions, knob.risk)), knob.name


def test_codes_are_those_of_values_and_back(space: Space) -> None:
    plans = every_plan(space)
    codes = space.knobs.codes_of(plans)
    assert [space.knobs.values_of(row.tolist()) for row in codes] == [plan.knobs for plan in plans]
    assert np.array_equal(space.knobs.canonical(columns_of(plans), codes, 8), codes)


def test_a_declared_effect_has_a_sign() -> None:
    knob = Knob(name="a", values=(1, 2), env="A", memory=Direction.LESS)
    assert (knob.declared("memory"), knob.declared("compute")) == (-1, 0)
