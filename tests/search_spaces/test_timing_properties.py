"""The time model over anything that a Space may hold: finite, never negative, never rewarding what only costs; fast."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.framework_profiles import (
    FSDP,
    MEGATRON_DEEPSPEED,
    NANOTRON,
    TRAINER_BFLOAT16,
    FrameworkProfile,
)
from meshtune.search_spaces.physics.timing import time_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.presets import cluster_presets


def cluster_of(name: str, nodes: int) -> ClusterSpec:
    preset = {key: value for key, value in cluster_presets()[name].items() if key != "source"}
    links = {key: LinkSpec(**value) for key, value in preset.items() if key.endswith("_link")}
    return ClusterSpec(**preset | links | {"nodes": nodes, "device": DeviceSpec(**preset["device"])})


LLAMA = ModelSpec(name="llama", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=32768, seq_len=2048)
MIXTURE = replace(LLAMA, name="mixture", experts=8, top_k=2, ffn=2048)
FRONTIER = cluster_of("frontier", 384)
A100 = cluster_of("dgx-a100", 16)


def step_of(model: ModelSpec, framework: FrameworkProfile, cluster: ClusterSpec, **plan) -> float:
    parts = time_parts(Training(model, cluster, framework), columns_of([Plan(**plan)]), DEFAULTS)
    return sum(float(column[0]) for column in parts.values())


plans = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 8]),
        "pp": st.sampled_from([1, 2, 4, 16]),
        "dp": st.sampled_from([1, 2, 8]),
        "cp": st.sampled_from([1, 2]),
        "ep": st.sampled_from([1, 2, 8]),
        "vpp": st.sampled_from([1, 2, 4]),
        "micro_batch_size": st.integers(1, 16),
        "grad_accum_steps": st.integers(1, 64),
        "zero_stage": st.integers(0, 3),
        "recompute": st.sampled_from(list(Recompute)),
        "schedule": st.sampled_from(list(Schedule)),
        "sequence_parallel": st.booleans(),
        "recompute_interval": st.integers(1, 4),
        "context": st.sampled_from(list(ContextParallel)),
    }
).map(lambda plan: plan | {"ep": min(plan["ep"], plan["dp"])})
cases = st.tuples(
    st.sampled_from([LLAMA, MIXTURE, replace(LLAMA, layers=61, vocab=1)]),
    st.sampled_from([TRAINER_BFLOAT16, MEGATRON_DEEPSPEED, NANOTRON, FSDP]),
    st.sampled_from([A100, replace(A100, nodes_per_rack=2), FRONTIER]),
)


@settings(max_examples=150, deadline=None)
@given(cases, plans)
def test_what_a_step_can_only_lose_by(case, plan):
    model, framework, cluster = case
    here = step_of(model, framework, cluster, **plan)
    longer = here * (1 - 1e-12)
    assert step_of(model, framework, cluster, **plan | {"recompute": "full"}) >= longer
    assert step_of(model, framework, cluster, **plan | {"grad_accum_steps": 65}) >= longer
    # Where launching decides, longer products cost nothing, and split backward passes fill a bubble the better.
    if not Schedule(plan["schedule"]).splits_backward:
        assert step_of(model, framework, cluster, **plan | {"micro_batch_size": 32}) >= longer
        slower = replace(cluster, device=replace(cluster.device, sustained_flops={"float16": 5e13, "bfloat16": 5e13}))
        assert step_of(model, framework, slower, **plan) >= longer
    distant = replace(cluster, network_link=LinkSpec(latency_s=1e-4, bandwidth_bytes_per_s=1e9))
    assert step_of(model, framework, distant, **plan) >= longer
