"""A plan as Accelerate's YAML: DDP, FSDP2 or DeepSpeed by the stage of ZeRO, and what it has no words for."""

from __future__ import annotations

import json

import pytest
import yaml
from dialect_cases import cases
from places import cluster

from meshtune.runners.programs.accelerate.special import render
from meshtune.runners.programs.dialects.base import CannotExpress
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

MODEL = ModelSpec(name="m", layers=16, hidden=512, heads=16, ffn=2048, vocab=1024, seq_len=256)
CLUSTER, ON_CPU = cluster(2, 8, "cuda"), cluster(2, 8)


def written(plan: Plan, **extra) -> dict:
    return yaml.safe_load(render(MODEL, plan, CLUSTER, extra)["accelerate.yaml"])


def test_replicas_that_shard_nothing_are_ddp_and_batches_are_the_scripts(stored):
    text = render(MODEL, Plan(dp=16, micro_batch_size=2, grad_accum_steps=3), CLUSTER)["accelerate.yaml"]
    assert yaml.safe_load(text) == stored["safe_load"]
    assert "micro-batches of 2 sequences" in text
    assert "Accelerator(gradient_accumulation_steps=3)" in text


@pytest.mark.parametrize(("stage", "reshards"), [(2, False), (3, True)])
def test_sharded_weights_are_fsdp2_with_its_mesh(stage, reshards, stored):
    plan = Plan(tp=2, cp=2, dp=4, context="ring", zero_stage=stage, recompute="full", sequence_parallel=False)
    said = written(plan, dtype="float16")
    assert said["distributed_type"] == "FSDP"
    assert said["fsdp_config"]["fsdp_version"] == 2
    assert said["fsdp_config"]["fsdp_reshard_after_forward"] is reshards
    assert said["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert said["parallelism_config"] == stored["parallelism_config"]
    assert said["mixed_precision"] == "fp16"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "mesh"),
    [
        (Plan(dp=16, zero_stage=3, zero_group=4), [("dp_replicate", 4), ("dp_shard", 4)]),
        (Plan(cp=2, dp=8, zero_stage=2, zero_group=8), [("dp_replicate", 2), ("dp_shard", 4), ("cp", 2)]),
    ],
)
def test_accelerate_itself_makes_a_mesh_of_the_groups(plan, mesh):
    """Accelerate 1.15.0: in the order of the ranks, the last next to each other."""
    config = pytest.importorskip("accelerate.parallelism_config").ParallelismConfig
    said = written(plan)["parallelism_config"].items()
    own = config(**{name.removeprefix("parallelism_config_"): size for name, size in said if name.endswith("_size")})
    assert list(zip(*own._get_mesh(), strict=True)) == mesh


def test_stage_1_is_deepspeeds_whose_file_says_the_batches():
    files = render(MODEL, Plan(dp=16, zero_stage=1, micro_batch_size=4), CLUSTER, {"dtype": "float32"})
    said = yaml.safe_load(files["accelerate.yaml"])
    assert (said["distributed_type"], said["deepspeed_config"]) == (
        "DEEPSPEED",
        {"deepspeed_config_file": "ds_config.json"},
    )
    assert "mixed_precision" not in said
    assert "micro-batches" not in files["accelerate.yaml"]
    config = json.loads(files["ds_config.json"])
    assert (config["train_batch_size"], config["zero_optimization"], config["bf16"]["enabled"]) == (
        64,
        {"stage": 1},
        False,
    )


@cases
def test_what_accelerate_has_no_words_for_is_refused_by_name(plan, rule):
    with pytest.raises(CannotExpress, match=rf"^Accelerate cannot run this plan: .*\({rule}: "):
        render(MODEL, Plan(**plan), CLUSTER)


@pytest.mark.parametrize("context", ["all_gather", "ring"])
def test_its_context_parallelism_is_for_cuda_alone(context):
    with pytest.raises(CannotExpress, match=r"cp\(2\), device\(cpu\) \(accelerate-cp-cuda: "):
        render(MODEL, Plan(cp=2, dp=8, zero_stage=3, context=context), ON_CPU)


def test_on_cpus_it_is_ddp_alone_and_says_so():
    said = yaml.safe_load(render(MODEL, Plan(dp=16), ON_CPU)["accelerate.yaml"])
    assert (said["distributed_type"], said["use_cpu"]) == ("MULTI_GPU", True)
    for stage in (1, 2, 3):
        with pytest.raises(CannotExpress, match=rf"zero_stage\({stage}\), device\(cpu\) \(accelerate-cpu: "):
            render(MODEL, Plan(dp=16, zero_stage=stage), ON_CPU)
