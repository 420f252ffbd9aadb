"""What Megatron's, DeepSpeed's and torchtitan's workloads do alike: refuse a plan, and tell apart how a job fails."""

from __future__ import annotations

import pytest
from workload_lab import BROKEN, WorkloadLab

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.dialects.base import CannotExpress
from meshtune.search_spaces.plan import Plan

PLAN = Plan(dp=8, micro_batch_size=2, grad_accum_steps=2)
LABS = {kind: WorkloadLab(kind, PLAN) for kind in ("megatron", "torchtitan")}
LABS["deepspeed"] = WorkloadLab("deepspeed", PLAN, script="/opt/train.py")


@pytest.mark.parametrize(
    ("kind", "plan", "told"),
    [
        ("megatron", Plan(pp=2, dp=4, zero_stage=3, grad_accum_steps=2), r"zero_stage\(3\) with pp\(2\)"),
        ("deepspeed", Plan(pp=2, dp=4, grad_accum_steps=2), "deepspeed-pp"),
        ("torchtitan", Plan(dp=8, zero_stage=1), "zero_stage"),
    ],
)
def test_a_plan_without_words_is_refused_before_anything_is_sent(tmp_path, kind, plan, told):
    with pytest.raises(CannotExpress, match=told):
        LABS[kind].materialize(tmp_path, plan)


# Megatron-LM: arguments.py, num_microbatches_calculator.py, transformer_config.py and schedules.py.
# DeepSpeed 0.19.8: runtime/config.py and runtime/pipe/engine.py.
# torchtitan v0.2.2: distributed/parallel_dims.py and distributed/pipeline_parallel.py.
REFUSALS = """
megatron AssertionError: Number of layers should be divisible by the pipeline-model-parallel size
megatron AssertionError: global batch size (12) is not divisible by micro batch size (1) times data parallel size (8)
megatron ValueError: num_query_groups (3) must be a multiple or divisor of tensor_model_parallel_size (2).
megatron RuntimeError: The remainder of M (the total micro-batches) divided by N (number of contiguous micro-batches \
in a virtual pipeline stage) should be 0, or larger than or equal to the pipeline-parallel size, but it is 1.
deepspeed AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * \
gradient_acc_step * world_size 32 != 2 * 2 * 4
deepspeed AssertionError: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism
torchtitan AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(4) * cp(1) * tp(2) * pp(1) != \
WORLD_SIZE(16)
torchtitan ValueError: Single stage schedule requires exactly 1 stage per rank, but got 2 stages per rank.
"""


@pytest.mark.parametrize("tag", ["", "[rank0]: "])
@pytest.mark.parametrize(
    ("kind", "last", "verdict", "cause"),
    [
        *((*line.split(" ", 1), Verdict.ILLEGAL, Cause.ILLEGAL_SETTING) for line in REFUSALS.strip().splitlines()),
        *((kind, "AssertionError: loss is NaN", Verdict.CRASHED, Cause.CRASH) for kind in LABS),
    ],
)
def test_what_the_program_refuses_is_an_illegal_setting(tmp_path, kind, last, verdict, cause, tag):
    lines = [f"{tag}Traceback (most recent call last):", f'{tag}  File "t.py", line 1, in <module>', f"{tag}{last}"]
    found = LABS[kind].outcome(tmp_path, {0: lines}, BROKEN)
    assert (found.verdict, found.failure, found.measurement) == (verdict, cause, None)
    assert last in found.reason
