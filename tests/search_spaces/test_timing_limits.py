"""What a step's time must obey whatever plan, code and cluster: order, limits, and descriptions that say the
same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshtune.runners.documents import read_value
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.framework_profiles import (
    DEEPSPEED,
    FRAMEWORKS,
    FSDP,
    MEGATRON_CORE,
    NANOTRON,
    TORCHTITAN_COMPILED,
    TRAINER_BFLOAT16,
)
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.presets import cluster_presets, described

DENSE = ModelSpec(name="dense", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, seq_len=8192)
MIXTURE = replace(DENSE, name="mixture", experts=64, top_k=4, ffn=2048, shared_ffn=2048)
# Rounding, where two sums have the same terms in another order.
EQUAL = 1e-9


def cluster_of(name: str, nodes: int) -> ClusterSpec:
    return replace(read_value(ClusterSpec, described(cluster_presets()[name])), nodes=nodes)


CLUSTERS = [cluster_of(*one) for one in (("dgx-h100", 32), ("frontier", 32), ("gb200-trays", 72), ("a100-400g", 32))]
CODES = [
    *(
        TRAINER_BFLOAT16,
        FSDP,
        DEEPSPEED,
        FRAMEWORKS["internevo"],
        NANOTRON,
        TORCHTITAN_COMPILED,
        MEGATRON_CORE["bfloat16"],
    ),
    replace(MEGATRON_CORE["bfloat16"], product_dtype="float8"),
]
plans = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 8]),
        "pp": st.sampled_from([1, 2, 8]),
        "dp": st.sampled_from([1, 2, 8, 32]),
        "cp": st.sampled_from([1, 2, 8]),
        "ep": st.sampled_from([1, 2, 8]),
        "vpp": st.sampled_from([1, 2]),
        "micro_batch_size": st.integers(1, 4),
        "grad_accum_steps": st.integers(1, 32),
        "zero_stage": st.integers(0, 3),
        "recompute": st.sampled_from(list(Recompute)),
        "schedule": st.sampled_from(list(Schedule)),
        "sequence_parallel": st.booleans(),
        "context": st.sampled_from(list(ContextParallel)),
    }
).map(lambda plan: plan | {"ep": min(plan["ep"], plan["dp"])})
cases = st.tuples(st.sampled_from([DENSE, MIXTURE]), st.sampled_from(CODES), st.sampled_from(CLUSTERS), plans)


def parts_of(model, code, cluster, plan) -> dict[TimePart, float]:
    parts = time_parts(Training(model, cluster, code), columns_of([Plan(**plan)]), DEFAULTS)
    return {part: float(column[0]) for part, column in parts.items()}


def step_of(*case) -> float:
    return sum(parts_of(*case).values())


@settings(max_examples=60, deadline=None)
@given(
    cases, st.sampled_from(["module_link", "node_link", "network_link", "rack_link"]), st.sampled_from([1.3, 4, 1e6])
)
def test_a_better_link_never_makes_a_step_longer(case, name, factor):
    model, code, cluster, plan = case
    if (link := getattr(cluster, name)) is None:
        return
    wider = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
    nearer = replace(link, latency_s=0.0)
    # Trays are one domain as long as the network's link is the node's own.
    both = {"node_link", "network_link"} if name in ("node_link", "network_link") and cluster.nodes_per_rack else {name}
    for better in (wider, nearer, replace(wider, latency_s=0.0)):
        changed = replace(cluster, **dict.fromkeys(both, better))
        assert step_of(model, code, changed, plan) <= step_of(*case) * (1 + EQUAL)


@settings(max_examples=60, deadline=None)
@given(
    cases,
    st.sampled_from(
        [
            *("overlapped_gradients", "overlapped_gathers", "overlaps_tensor", "overlaps_tensor_forward"),
            *("overlaps_sends", "overlaps_experts", "dispatches_by_node", "fused_accumulation"),
        ]
    ),
)
def test_what_a_code_hides_or_saves_never_makes_a_step_longer(case, what):
    model, code, cluster, plan = case
    # Where the host sets the pace, gradients of weights that take their kernels less time fill less of a bubble.
    assume(what != "fused_accumulation" or not plan["schedule"].splits_backward)
    without, with_it = (step_of(model, replace(code, **{what: on}), cluster, plan) for on in (False, True))
    assert with_it <= without * (1 + EQUAL)


@settings(max_examples=40, deadline=None)
@given(cases)
def test_one_replica_waits_for_nobody(case):
    model, code, cluster, plan = case
    alone = plan | {"dp": 1, "cp": 1, "ep": 1}
    assert parts_of(model, replace(code, slice_s=0.0), cluster, alone)[TimePart.DP] == 0


@settings(max_examples=40, deadline=None)
@given(cases)
def test_a_group_of_all_ranks_shards_as_no_group(case):
    model, code, cluster, plan = case
    whole = plan | {"zero_group": plan["dp"] * plan["cp"]}
    assert step_of(model, code, cluster, whole) == pytest.approx(step_of(*case), rel=EQUAL)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([DENSE, MIXTURE]), st.sampled_from(CODES), plans)
def test_a_rack_of_one_nvlink_domain_takes_the_same_step_by_trays_as_whole(model, code, plan):
    steps = [step_of(model, code, cluster_of(*one), plan) for one in (("gb200-nvl72", 4), ("gb200-trays", 72))]
    assert steps[0] == pytest.approx(steps[1], rel=EQUAL)


@settings(max_examples=40, deadline=None)
@given(cases, st.sampled_from(["module", "rack"]))
def test_a_tier_that_is_no_other_than_the_next_one_changes_nothing(case, tier):
    model, code, cluster, plan = case
    flat = replace(cluster, nodes_per_rack=0, rack_link=None, module_link=None, devices_per_module=1)
    if flat.network_link == flat.node_link:
        flat = replace(flat, network_link=replace(flat.network_link, bandwidth_bytes_per_s=50e9))
    more = (
        {"nodes_per_rack": flat.nodes} if tier == "rack" else {"devices_per_module": 2, "module_link": flat.node_link}
    )
    assert step_of(model, code, replace(flat, **more), plan) == pytest.approx(
        step_of(model, code, flat, plan), rel=EQUAL
    )
