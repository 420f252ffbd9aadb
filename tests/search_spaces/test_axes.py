"""Of the newer axes (schedules, recomputation, context and expert parallelism) only right, distinct plans are legal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshtune.runners.trainer.job import Job
from meshtune.runners.trainer.support import require_supported
from meshtune.runners.workloads.torch import TorchWorkload
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space
from meshtune.search_spaces.space_context import Capabilities, SpaceContext

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
    device = DeviceSpec(name="x", kind=kind, memory_bytes=2**30)
    cluster = ClusterSpec(name="c", nodes=1, devices_per_node=8, device=device)
    return Space(bounds, SpaceContext(model=model, cluster=cluster, global_batch_size=batch, capabilities=able))


LEGAL: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2, "dp": 4},
    "cp": {"cp": 2, "dp": 4},
    "interleaved": {"pp": 2, "dp": 4, "vpp": 2, "schedule": "interleaved"},
    "zero_bubble": {"pp": 2, "dp": 4, "vpp": 4, "schedule": "zero_bubble"},
    "zbv": {"pp": 2, "dp": 4, "vpp": 2, "schedule": "zbv"},
    "recompute": {"dp": 8, "recompute": "full", "recompute_interval": 2},
}


def completed(start: str, **change: Any) -> Plan:
    given = LEGAL[start] | change
    return space().complete(**{"zero_stage": 0} | given)


@pytest.mark.parametrize("start", LEGAL)
def test_the_plans_that_the_others_start_from_are_legal(start):
    assert space().explain(completed(start)) == []


@pytest.mark.parametrize(
    ("start", "change", "rule", "numbers"),
    [
        ("interleaved", {"vpp": 1}, "vpp-schedule", "vpp(1) does not go with schedule(interleaved)"),
        ("zbv", {"vpp": 4}, "zbv-vpp", "vpp(4) with schedule(zbv), which needs vpp(2)"),
        ("zbv", {"zero_stage": 3}, "split-backward-zero3", "zero_stage(3) with schedule(zbv)"),
        ("zero_bubble", {"zero_stage": 3}, "split-backward-zero3", "zero_stage(3) with schedule(zero_bubble)"),
        ("zbv", {"recompute": "selective"}, "split-backward-selective", "recompute(selective) with schedule(zbv)"),
        (
            "interleaved",
            {"grad_accum_steps": 5},
            "interleaved-rounds",
            "grad_accum_steps(5) is no multiple of its 2 rounds of at least pp(2)",
        ),
        ("recompute", {"recompute": "none"}, "interval-needs-recompute", "recompute_interval(2) with recompute(none)"),
        ("recompute", {"recompute_interval": 9}, "recompute-interval", "recompute_interval(9) is above the layers"),
        ("cp", {"tp": 4, "dp": 1, "context": "ulysses"}, "ulysses-kv-heads", "= 8 does not divide kv_heads(4)"),
        ("cp", {"context": "ring"}, "ring-cuda", "context(ring) on cpu devices"),
        ("tp", {"context": "ulysses"}, "context-needs-cp", "context(ulysses) with cp(1)"),
        ("cp", {"sequence_parallel": False}, "sequence-parallel-needs-tp", "sequence_parallel(False) with tp(1)"),
        ("cp", {"ep": 2}, "ep-experts", "ep(2), but the model has no experts"),
    ],
)
def test_what_cannot_be_right_or_runs_twice_is_illegal(start, change, rule, numbers):
    found = {violation.constraint: str(violation) for violation in space().explain(completed(start, **change))}
    assert numbers in found[rule]


def test_heads_that_ulysses_cannot_share_are_named():
    found = space(replace(DENSE, heads=4, kv_heads=4)).explain(completed("cp", tp=4, dp=1, context="ulysses"))
    assert "ulysses-heads" in [violation.constraint for violation in found]


def test_a_ring_needs_two_slices_per_rank():
    odd = replace(DENSE, seq_len=6)
    found = space(odd, kind=DeviceKind.CUDA).explain(completed("cp", context="ring"))
    assert [violation.constraint for violation in found] == ["ring-sequence"]


def test_experts_are_spread_over_dp_alone():
    mixture = space(MIXTURE)
    assert mixture.explain(mixture.complete(ep=4, zero_stage=2)) == []
    found = mixture.explain(mixture.complete(tp=4, ep=4))
    assert [str(violation).partition(" (")[0] for violation in found] == ["ep(4) does not divide dp(2)"]


@pytest.mark.parametrize("model", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("kind", DeviceKind)
def test_the_trainer_supports_every_plan_that_the_space_allows(model, kind):
    plans = space(model, kind=kind)
    assert len(plans) > 1000
    for plan in plans:
        require_supported(Job(name="x", model=model, plan=plan, device=kind))


def test_a_plain_trainer_allows_none_of_the_new_axes():
    plain = space(able=Capabilities())
    assert {plan.context for plan in plain} == {ContextParallel.ALL_GATHER}
    assert {(plan.cp, plan.vpp, plan.recompute_interval, plan.sequence_parallel) for plan in plain} == {(1, 1, 1, True)}
    plan = completed("recompute", sequence_parallel=False, tp=2, dp=4, cp=1)
    rules = [violation.constraint for violation in plain.explain(plan)]
    assert rules == ["trainer-recompute", "trainer-recompute-interval", "trainer-sequence-parallel"]


def test_plan_fields_of_the_wrong_kind_are_refused():
    with pytest.raises(ValueError, match="sequence_parallel: must be true or false, not 1"):
        Plan(sequence_parallel=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="context: must be one of all_gather, ulysses, ring, not 'star'"):
        Plan(context="star")  # type: ignore[arg-type]
