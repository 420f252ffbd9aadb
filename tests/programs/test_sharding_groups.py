"""Sharding groups and the experts' own degree in commands: the numbers that a program is told in their place, and the
plans that it can run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from places import cluster

from meshtune.runners.programs.reading import DERIVED
from meshtune.runners.programs.rows import derived
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds, Space

DENSE = ModelSpec(name="d", layers=8, hidden=512, heads=16, kv_heads=2, ffn=2048, vocab=1024, seq_len=256)
MIXTURE = ModelSpec(name="m", layers=8, hidden=512, heads=16, ffn=2048, vocab=1024, seq_len=256, experts=8, top_k=2)
CLUSTER = cluster(2, 8, "cuda", memory_bytes=2**36)
BATCH = "--mbs {micro_batch_size} --ga {grad_accum_steps}"


def legal(command: str, model: ModelSpec, bounds: Bounds, **options) -> set[tuple[int, ...]]:
    """tp, cp, ep, etp, zero_stage and zero_group of the plans that the command can run."""
    workload = create_workload("command", {"command": f"train {BATCH} {command}", **options})
    setting = SpaceContext(
        model=model, cluster=CLUSTER, global_batch_size=64, capabilities=workload.capabilities, tp_across_nodes=True
    )
    axes = ("tp", "cp", "ep", "etp", "zero_stage", "zero_group")
    return {tuple(getattr(plan, axis) for axis in axes) for plan in Space(bounds, setting)}


@pytest.mark.parametrize(
    ("plan", "numbers"),
    [
        (Plan(tp=2, cp=2, dp=4), (1, 8, 4, 2)),
        (Plan(tp=2, cp=2, dp=4, zero_stage=3, zero_group=4), (2, 4, 2, 2)),
        (Plan(tp=2, dp=8, zero_stage=1, zero_group=2, ep=8, etp=1), (4, 2, 2, 1)),
    ],
)
def test_what_programs_are_told_in_place_of_an_axis(plan, numbers):
    assert derived(plan) == dict(zip(("zero_groups", "zero_ranks", "zero_shards", "expert_tp"), numbers, strict=True))
    words = " ".join(f"{{{name}}}" for name in DERIVED)
    workload = create_workload("command", {"command": f"echo {words}"})
    job = workload.materialize(JobRequest("t", MIXTURE, plan, CLUSTER, Path("/job"), seed=0, time_limit_s=9))
    assert job.command[-1].split()[1:] == [str(derived(plan)[name]) for name in DERIVED]


def test_groups_vary_where_the_command_is_told_and_else_have_one_value():
    bounds = Bounds(tp=(1,), pp=(1,), cp=(1, 4), micro_batch_size=(1,), zero_stage=(0, 3), zero_group=(0, 2, 8))
    stage, cp = "--zero {zero_stage}", "--cp {cp}"
    groups = {group for *_, group in legal(stage, DENSE, bounds)}
    assert groups == {0}
    told = legal(f"{stage} {cp} --replicas {{zero_groups}}", DENSE, bounds)
    assert {(cp, group) for _, cp, *_, zero, group in told if zero == 3} == {
        *((1, 0), (1, 2), (1, 8), (4, 0), (4, 2), (4, 8)),
    }
    assert {group for *_, zero, group in told if zero == 0} == {0}
    # A mesh of replicas and shards has all ranks of a sequence among the shards.
    mesh = legal(f"{stage} {cp} --replicas {{zero_groups}} --shards {{zero_shards}}", DENSE, bounds)
    assert {group for _, cp, *_, group in mesh if cp == 4} == {0, 8}
    fixed = legal(stage, DENSE, bounds, fixed={"zero_group": 8})
    assert {(zero, group) for *_, zero, group in fixed} == {(0, 0), (3, 8)}
    # On 16 ranks a group of all is the usual one.
    assert {(zero, group) for *_, zero, group in legal(stage, DENSE, bounds, fixed={"zero_group": 16})} == {
        *((0, 0), (3, 0)),
    }


def test_experts_have_degrees_of_their_own_where_the_command_is_told():
    bounds = Bounds(tp=(2,), pp=(1,), ep=(1, 8), etp=(0, 1), micro_batch_size=(1,), zero_stage=(0,))
    words = "--tp {tp} --ep {ep}"
    assert {(ep, etp) for *_, ep, etp, _, _ in legal(words, MIXTURE, bounds)} == {(1, 0), (8, 0)}
    told = legal(f"{words} --etp {{expert_tp}}", MIXTURE, bounds)
    assert {(ep, etp) for *_, ep, etp, _, _ in told} == {(1, 0), (1, 1), (8, 0), (8, 1)}
    fixed = legal(words, MIXTURE, bounds, fixed={"etp": 1})
    assert {(ep, etp) for *_, ep, etp, _, _ in fixed} == {(1, 1), (8, 1)}


@pytest.mark.parametrize(("framework", "most"), [("fsdp", 16), ("megatron-core-bfloat16", 2)])
def test_ulysses_takes_more_ranks_than_kv_heads_where_programs_repeat_them(framework, most):
    bounds = Bounds(tp=(1,), pp=(1,), cp=(1, 2, 4, 16), context=("ulysses",), micro_batch_size=(1,), zero_stage=(0,))
    options = {"framework": framework, "fixed": {"context": "ulysses"}}
    found = legal("--cp {cp}", DENSE, bounds, **options)
    assert max(cp for _, cp, *_ in found) == most


def test_a_fixed_stage_of_experts_alone_is_no_stage_0_besides():
    bounds = Bounds(tp=(16,), pp=(1,), ep=(8,), etp=(1,), micro_batch_size=(1,))
    words, fixed = "--tp {tp} --ep {ep} --etp {expert_tp}", {"zero_stage": 1}
    assert {zero for *_, zero, _ in legal(words, MIXTURE, bounds, fixed=fixed)} == {1}


def test_a_plan_says_its_numbers_to_a_configuration_too():
    config = {"format": "json", "base": {}, "set": {"mesh.replicate": "{zero_groups}", "mesh.shard": "{zero_shards}"}}
    workload = create_workload("command", {"command": ["train"], "configs": {"c.json": config}})
    plan = Plan(dp=16, zero_stage=3, zero_group=8)
    job = workload.materialize(JobRequest("t", DENSE, plan, CLUSTER, Path("/job"), seed=0, time_limit_s=9))
    assert json.loads(job.files["c.json"]) == {"mesh": {"replicate": 2, "shard": 8}}
