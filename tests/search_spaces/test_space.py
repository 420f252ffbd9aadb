"""A Space holds the plans of which `explain` has nothing to say, each once, and no plan that the trainer cannot run or
that says another's layout; test_constraints.py has the rules."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import cluster

from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.job import TrainerJob, require_supported
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import Capabilities, SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import PLAN_FIELDS, ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.space import MAX_COMBINATIONS, Bounds, Space, SpaceTooLarge

ALL = {"recompute": tuple(Recompute), "schedule": tuple(Schedule)}


PLAIN = Capabilities()
CASES = {
    "one node": (Bounds(), {}),
    "a plain trainer": (Bounds(cp=(1, 2), **ALL), {"able": PLAIN}),
    "a plain trainer and experts": (Bounds(ep=(1, 2)), {"able": PLAIN, "experts": 4, "top_k": 2}),
    "grouped queries, copied": (Bounds(), {"kv_heads": 2, "devices_per_node": 8}),
    "grouped queries, not copied": (Bounds(), {"kv_heads": 2, "able": PLAIN}),
    "three key heads": (Bounds(), {"hidden": 768, "heads": 12, "kv_heads": 3, "devices_per_node": 6, "batch": 24}),
    "two nodes": (Bounds(), {"nodes": 2, "batch": 48}),
    "two nodes, tp across": (Bounds(tp_across_nodes=True), {"nodes": 2, "tp_across_nodes": True, "heads": 16}),
    "three nodes of six": (Bounds(cp=(1, 2, 3)), {"nodes": 3, "devices_per_node": 6, "batch": 36, "layers": 12}),
    "a free batch": (Bounds(), {"batch": None}),
    "a free batch, bounded": (Bounds(grad_accum_steps=(1, 3, 8)), {"batch": None}),
    "experts": (Bounds(ep=(1, 2, 3, 4, 8)), {"experts": 8, "top_k": 2, "nodes": 2}),
    "interleaved": (Bounds(vpp=(1, 2, 3, 4), **ALL), {"layers": 12, "batch": 64}),
    "everything": (Bounds(cp=(1, 2, 4), ep=(1, 2), vpp=(1, 2), **ALL), {"experts": 6, "top_k": 1, "kv_heads": 4}),
    "kinds of context parallelism": (
        Bounds(cp=(1, 2, 4), context=tuple(ContextParallel), sequence_parallel=(True, False)),
        {"kv_heads": 4, "seq_len": 264},
    ),
    "some layers recomputed": (Bounds(recompute=tuple(Recompute), recompute_interval=(1, 2, 3, 9)), {}),
    "sharding groups": (Bounds(cp=(1, 2), zero_group=(0, 1, 2, 3, 8, 16)), {"nodes": 2}),
    "layouts of experts": (
        Bounds(cp=(1, 2), ep=(1, 2, 8), etp=(0, 1, 2, 4), zero_group=(0, 4), sequence_parallel=(True, False)),
        {"experts": 8, "top_k": 2},
    ),
    "odd bounds": (Bounds(tp=(8, 3, 1), pp=(2, 1), micro_batch_size=(5, 3, 1), zero_stage=(3, 0)), {"batch": 30}),
    "an odd batch": (Bounds(), {"batch": 7}),
    "three devices": (Bounds(), {"devices_per_node": 3, "batch": 12, "layers": 9, "hidden": 576, "heads": 9}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_enumeration_is_every_plan_that_breaks_no_rule(name, make_setting):
    bounds, changes = CASES[name]
    space = Space(bounds, make_setting(**changes))
    plans = list(space)
    assert len(plans) == len(set(plans)) == len({plan.key for plan in plans}) == len(space) == space.counts.legal
    chance = random.Random(1)
    chosen = ({axis: chance.choice(values) for axis, values in space.dimensions.items()} for _ in range(60))
    tried = [*(space.complete(**values) for values in chosen), *chance.sample(plans, min(20, len(plans)))]
    legal = {plan for plan in tried if not space.explain(plan)}
    assert legal == set(tried) & set(plans)
    if name != "a plain trainer and experts":
        assert plans
        assert len(plans) < space.counts.combinations


def layout(tp, cp, dp, ep, etp, stage, group):
    """Which of a stage's ranks hold the same dense weights and the same experts, and which of these shard them; None
    where that cannot be laid out. Written without the package's rules."""
    ranks, held = range(tp * cp * dp), (etp or tp) * ep
    if len(ranks) % held or (stage and group and dp * cp % group):
        return None
    groups = dp * cp // group if stage and group else 1
    shards = []
    for parts in (tp, held):
        same = [[rank for rank in ranks if rank % parts == place] for place in range(parts)]
        if len(same[0]) % groups:
            return None
        size = len(same[0]) // groups if stage else 1
        shards.append(frozenset(tuple(one[at : at + size]) for one in same for at in range(0, len(one), size)))
    shared = [any(len(one) > 1 for one in each) for each in shards]
    # A stage that shards nothing is none; of experts alone there is the first, the distributed optimizer.
    if stage and not shared[0] and (group or stage > 1):
        return None
    return tp, cp, dp, ep, etp or tp, stage * any(shared), *shards


def test_groups_and_degrees_of_experts_are_those_that_can_be_laid_out_each_once(make_setting):
    values = {
        "tp": (1, 2, 4, 8),
        "cp": (1, 2, 4),
        "ep": (1, 2, 4, 8, 3),
        "etp": (0, 1, 2, 4, 8),
        "zero_stage": (0, 1, 2, 3),
        "zero_group": (0, 1, 2, 4, 8, 3),
    }
    wanted = set()
    for tp, cp, ep, etp, stage, group in product(*values.values()):
        found = 8 % (tp * cp) == 0 == 24 % ep and layout(tp, cp, 8 // (tp * cp), ep, etp, stage, group)
        wanted |= {found} if found else set()
    bounds = Bounds(pp=(1,), micro_batch_size=(1,), **values)
    plans = list(Space(bounds, make_setting(experts=24, top_k=2)))
    own = [layout(p.tp, p.cp, p.dp, p.ep, p.etp, p.zero_stage, p.zero_group) for p in plans]
    assert len(own) == len(set(own)) > 400
    assert set(own) == wanted


def test_a_space_is_a_read_only_sequence(make_setting):
    space = Space(Bounds(), make_setting(nodes=2))
    plans = list(space)
    assert [space[index] for index in range(len(space))] == plans
    assert space[-1] == plans[-1]
    assert space[-len(space)] == plans[0]
    assert space[2:9:3] == plans[2:9:3]
    assert space[::-1] == plans[::-1]
    assert space[len(space) :] == []
    assert list(reversed(space)) == plans[::-1]
    for index in (len(space), -len(space) - 1):
        with pytest.raises(IndexError, match=f"plan {index} of {len(space)}"):
            space[index]


@pytest.mark.parametrize("batch", [48, None])
def test_every_plan_is_found_at_its_position(batch, make_setting):
    space = Space(Bounds(cp=(2, 1), **ALL), make_setting(nodes=2, batch=batch))
    assert [space.index_of(plan) for plan in space] == list(range(len(space)))


small = st.sampled_from((1, 2, 3, 4, 8))
OTHERS = {
    "zero_stage": st.integers(0, 3),
    "recompute": st.sampled_from(Recompute),
    "schedule": st.sampled_from(Schedule),
    "sequence_parallel": st.booleans(),
    "context": st.sampled_from(ContextParallel),
}
any_plan = st.builds(Plan, **OTHERS, **{name: small for name in PLAN_FIELDS if name not in OTHERS})


@pytest.fixture(scope="module")
def spaces(make_setting):
    """Spaces of each kind, with their members looked up by a plain set."""
    built = [
        Space(Bounds(), make_setting(batch=32)),
        Space(Bounds(cp=(1, 2), ep=(1, 2), vpp=(1, 2), **ALL), make_setting(batch=None, experts=2, top_k=1)),
        Space(Bounds(vpp=(1, 2), **ALL), make_setting(nodes=2, batch=16, kv_heads=2)),
        Space(Bounds(), make_setting(able=PLAIN, batch=32)),
        Space(
            Bounds(
                cp=(1, 2),
                context=tuple(ContextParallel),
                sequence_parallel=(True, False),
                recompute=tuple(Recompute),
                recompute_interval=(1, 2),
            ),
            make_setting(batch=32),
        ),
    ]
    return [(space, set(space)) for space in built]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_explain_is_empty_exactly_for_members(spaces, data):
    space, members = data.draw(st.sampled_from(spaces))
    drawn = data.draw(any_plan)
    # A random plan is hardly ever legal: half of the time, a legal one with two fields of the random one.
    if data.draw(st.booleans()):
        start = space[data.draw(st.integers(0, len(space) - 1))].as_dict()
        changed = data.draw(st.lists(st.sampled_from(PLAN_FIELDS), max_size=2))
        drawn = Plan(**start | {name: drawn.as_dict()[name] for name in changed})
    broken = space.explain(drawn)
    assert (not broken) == (drawn in members) == (drawn in space)
    within = all(getattr(drawn, name) in values for name, values in space.dimensions.items())
    assert ("bounds" in {violation.constraint for violation in broken}) == (not within)
    without_bounds = space.explain(drawn, ignore_bounds=True)
    assert without_bounds == [violation for violation in broken if violation.constraint != "bounds"]


def test_numbers_beyond_any_machine_word_are_explained(make_setting):
    space = Space(Bounds(), make_setting())
    # 5 * 5581 * 8681 * 49477 * 384773 = 2^62 + 1, and 8 * (2^62 + 1) is 8 in 64 bits.
    for plan in (Plan(tp=5 * 5581 * 8681, pp=49477, cp=384773, dp=8), Plan(tp=2**30, pp=2**30, cp=2**4)):
        assert plan not in space
        (devices,) = [broken for broken in space.explain(plan) if broken.constraint == "devices"]
        assert f"= {plan.world_size}, but the cluster has 8 devices" in devices.message


def test_the_defaults_follow_from_model_and_cluster(make_setting):
    space = Space(Bounds(), make_setting(nodes=3, devices_per_node=4, layers=6, batch=6))
    assert space.dimensions["tp"] == (1, 2, 4)
    assert space.dimensions["pp"] == (1, 2, 3, 4, 6)
    assert space.dimensions["micro_batch_size"] == (1, 2, 4)
    assert "grad_accum_steps" not in space.dimensions
    free = Space(Bounds(), make_setting(nodes=3, devices_per_node=4, tp_across_nodes=True, batch=None))
    assert free.dimensions["tp"] == (1, 2, 3, 4, 6, 12)
    assert free.dimensions["micro_batch_size"] == (1, 2, 4, 8, 16)
    assert free.dimensions["grad_accum_steps"] == (1, 2, 4, 8, 16, 32)


def test_what_is_left_out_is_completed(make_setting):
    space = Space(Bounds(), make_setting(nodes=2, batch=96))
    plan = space.complete(tp=2, pp=4, micro_batch_size=3)
    assert (plan.dp, plan.grad_accum_steps) == (2, 16)
    assert space.explain(plan, ignore_bounds=True) == []
    assert space.complete(tp=2, dp=3, grad_accum_steps=5) == Plan(tp=2, dp=3, grad_accum_steps=5)
    assert space.complete(recompute="full").recompute is Recompute.FULL
    assert Space(Bounds(), make_setting(batch=None)).complete(tp=8).grad_accum_steps == 1


def test_what_does_not_fit_is_rounded_down_and_explained(make_setting):
    space = Space(Bounds(), make_setting(nodes=2, batch=100))
    plan = space.complete(tp=3, micro_batch_size=7)
    assert (plan.dp, plan.grad_accum_steps) == (5, 2)
    assert {"devices", "global-batch"} < {broken.constraint for broken in space.explain(plan)}
    assert space.complete(tp=64, micro_batch_size=999).grad_accum_steps == 1


def test_a_plan_that_cannot_be_is_not_completed(make_setting):
    space = Space(Bounds(), make_setting())
    with pytest.raises(InvalidValue, match=r"^tp: must be at least 1, not 0; recompute: must be one of"):
        space.complete(tp=0, recompute="some")
    with pytest.raises(TypeError, match="colour"):
        space.complete(colour=1)


def test_one_value_of_a_group_adds_it_to_each_plan_that_it_changes(make_setting):
    setting = make_setting(nodes=2)
    usual, both = (set(Space(bounds, setting)) for bounds in (Bounds(), Bounds(zero_group=(0, 8))))
    smaller = {replace(plan, zero_group=8) for plan in usual if plan.zero_stage and plan.dp == 16}
    assert smaller
    assert both == usual | smaller
    unable = make_setting(nodes=2, able=PLAIN)
    assert set(Space(Bounds(zero_group=(0, 8)), unable)) == set(Space(Bounds(), unable))


def test_a_space_may_be_empty(make_setting):
    space = Space(Bounds(), make_setting(devices_per_node=3, layers=2, batch=32))
    assert (len(space), list(space), space[:]) == (0, [], [])
    assert space.counts.combinations > 0
    with pytest.raises(KeyError):
        space.index_of(Plan(dp=3))
    with pytest.raises(IndexError):
        space[0]
    assert "= 32, but" not in str(space.explain(space.complete())[0])
    assert {broken.constraint for broken in space.explain(space.complete())} == {"global-batch"}


def test_too_many_combinations_are_refused_with_their_numbers(make_setting):
    bounds = Bounds(micro_batch_size=tuple(range(1, 5001)), grad_accum_steps=tuple(range(1, 5001)))
    told = rf"^micro_batch_size\(5000\) \* .* \* tp\(4\) .* = {64 * 5000**2} combinations, .*{MAX_COMBINATIONS}"
    with pytest.raises(SpaceTooLarge, match=told):
        Space(bounds, make_setting(batch=None))


def test_combinations_are_counted_before_any_is_enumerated(make_setting):
    start = time.process_time()
    space = Space(Bounds(micro_batch_size=tuple(range(1, 9001))), make_setting(batch=None), max_combinations=10**7)
    assert space.combinations > 3_000_000
    assert space.explain(space.complete(micro_batch_size=3)) == []
    assert time.process_time() - start < 0.1
    with pytest.raises(SpaceTooLarge, match=f"{space.combinations} combinations, more than the 2000000 that"):
        Space(space.bounds, space.context, max_combinations=2_000_000)


def test_a_cluster_beyond_measure_is_enumerated_at_once(make_setting):
    start = time.process_time()
    space = Space(Bounds(), make_setting(nodes=2**31 - 1, devices_per_node=1, batch=2**31 - 1))
    assert len(space) == 4
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"tp": ()}, "^tp: must name at least one value$"),
        ({"cp": (1, 2, 1)}, "^cp: names a value twice: 1, 2, 1$"),
        ({"pp": (0, 1)}, "^pp: must be between 1 and 1000000, not 0$"),
        (
            {"micro_batch_size": (2**62, 1)},
            "^micro_batch_size: must be between 1 and 1000000, not 4611686018427387904$",
        ),
        ({"zero_stage": (1, 4, -1)}, "^zero_stage: must be between 0 and 3, not 4; zero_stage: .*not -1$"),
        ({"recompute": ("some", "full")}, "^recompute: must be one of none, selective, full, not 'some'$"),
        ({"schedule": ("x",), "recompute": ("y",)}, "^recompute: .*; schedule: .*not 'x'$"),
        ({"recompute": ("full", Recompute.FULL)}, "^recompute: names a value twice: full, full$"),
    ],
)
def test_wrong_bounds_are_refused_by_name(bounds, message):
    with pytest.raises(InvalidValue, match=message):
        Bounds(**bounds)


DENSE = ModelSpec(name="d", layers=8, hidden=64, heads=8, kv_heads=4, ffn=128, vocab=256, seq_len=64)
MIXTURE = replace(DENSE, name="m", experts=4, top_k=2)
ABLE = TorchWorkload({}).capabilities
WIDE = Bounds(
    cp=(1, 2, 4),
    ep=(1, 2, 4),
    vpp=(1, 2, 4),
    micro_batch_size=(1, 2),
    recompute=tuple(Recompute),
    schedule=tuple(Schedule),
    sequence_parallel=(True, False),
    recompute_interval=(1, 2),
    context=tuple(ContextParallel),
)


def space(
    model: ModelSpec = DENSE,
    bounds: Bounds = WIDE,
    kind: DeviceKind = DeviceKind.CPU,
    able: Capabilities = ABLE,
    batch: int | None = 16,
) -> Space:
    place = cluster(1, 8, kind)
    return Space(bounds, SpaceContext(model=model, cluster=place, global_batch_size=batch, capabilities=able))


@pytest.mark.parametrize("model", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("kind", DeviceKind)
def test_the_trainer_supports_every_plan_that_the_space_allows(model, kind):
    plans = space(model, kind=kind)
    assert len(plans) > 1000
    for plan in plans:
        require_supported(TrainerJob(name="x", model=model, plan=plan, device=kind))
