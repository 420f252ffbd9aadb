"""A launch script of Megatron read back: every way to say a thing. Questions: test_megatron_questions.py."""

from __future__ import annotations

import pytest
from dialect_cases import cases

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.megatron.dialect import parse

SHAPES = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --vocab-size 51200"
BATCH = "--micro-batch-size 2 --global-batch-size 64 --bf16"
START = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {SHAPES} {BATCH}"
TIME = "trials may take 30 minutes: a start of Megatron takes 2 to 10 on a cluster"


def plan(*more: str) -> dict:
    return dict(parse(" ".join([START, *more])).plan)


def test_what_megatron_does_unless_told_otherwise(stored):
    imported = parse(START)
    assert imported.model == stored["model"]
    assert imported.plan == stored["plan"]
    assert imported.workload == stored["workload"]
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (64, 2, 8)
    assert imported.trial == {"time_limit_s": 1800}
    assert (imported.questions, imported.notes) == ((), (f"line 1: {TIME}",))


@cases
def test_every_way_to_say_a_part_of_the_plan(argument, fields):
    assert plan(argument) == {**plan(), "grad_accum_steps": 2 * (16 // fields.get("dp", 16)), **fields}


@cases
def test_every_way_to_say_a_shape(argument, fields):
    imported = parse(f"{START} {argument}")
    assert imported.model == {**parse(START).model, **fields}
    assert [question for question in imported.questions if question.path != "workload.ds_config"] == []


@cases
def test_every_launcher_says_on_how_many_devices(before, devices):
    text = before if "p.py" in before else f"{before} p.py --lr 1"
    imported = parse(text)
    assert [imported.nodes, imported.devices_per_node] == devices


def test_what_surrounds_the_start_goes_along_and_secrets_do_not():
    script = f"""
module load cuda
source env.sh
export NCCL_DEBUG=WARN WANDB_API_KEY=abc HF_TOKEN=def
export MASTER_ADDR=$(hostname)
export LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH
wget http://example.org/vocab.json
cd /opt/Megatron
OMP_NUM_THREADS=4 RANK=0 {START} --save /ckpt
module purge
"""
    imported = parse(script)
    assert imported.workload["setup"] == ["module load cuda", "source env.sh"]
    assert imported.workload["env"] == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "4"}
    assert imported.workload["directory"] == "/opt/Megatron"
    assert imported.notes == (
        "line 7: `wget` is not run by trials",
        "line 4: the value of WANDB_API_KEY is not copied: it may be a secret",
        "line 4: the value of HF_TOKEN is not copied: it may be a secret",
        "line 6: the value of LD_LIBRARY_PATH is not known here; fill it in under workload.env",
        f"line 9: {TIME}",
    )
    assert "abc" not in str(imported)


def test_deepspeed_s_settings_that_the_script_writes_itself_are_read():
    script = f"""
STAGE=2
cat <<EOT > ds.json
{{"train_batch_size": 64, "zero_optimization": {{"stage": $STAGE}}, "fp16": {{"enabled": true}},
 "wall_clock_breakdown": false}}
EOT
{START.replace("--bf16", "")} --deepspeed --deepspeed_config ds.json
"""
    imported = parse(script)
    assert imported.plan["zero_stage"] == 2
    assert (imported.workload["flavour"], imported.workload["dtype"]) == ("megatron-deepspeed", "float16")
    assert imported.workload["ds_config"] == {
        "zero_optimization": {"stage": 2},
        "fp16": {"enabled": True},
        "wall_clock_breakdown": False,
    }
    assert (imported.questions, imported.notes) == ((), (f"line 7: {TIME}",))


def test_a_helper_before_the_start_is_none_itself():
    imported = parse(f"python prepare.py --output data\n{START}")
    assert imported.workload["script"] == "pretrain_gpt.py"
    assert imported.notes == ("line 1: `python` is not run by trials", f"line 2: {TIME}")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo hello", "no line starts a Python program"),
        ("for i in 1; do\ntorchrun p.py --lr 1\ndone", "no line starts a Python program .*; line 1: what `for` opens"),
        ("torchrun 'p.py --lr 1", "line 1: the quote that opens here is never closed"),
        ("", "no line starts a Python program"),
        ("run " + "${A:-" * 500 + "}" * 500, "line 1: its brackets are nested deeper than 50 levels"),
        ('sh -c "echo \'sh -c \\"p.py x\\"\'"', "no line starts a Python program"),
    ],
)
def test_what_is_no_launch_script_is_refused(script, error):
    with pytest.raises(CannotRead, match=error):
        parse(script)


@cases
def test_the_vocabulary_is_read_with_its_padding(argument, vocab, multiple, kept):
    imported = parse(f"{START} {argument}")
    assert (imported.model["vocab"], imported.model.get("vocab_multiple", 0)) == (vocab, multiple)
    assert imported.workload["arguments"] == kept


def test_a_vocabulary_is_not_padded_for_the_baseline_s_tensor_ranks_alone():
    imported = parse(START.replace("51200", "50257") + " --tensor-model-parallel-size 8")
    assert (imported.model["vocab"], "vocab_multiple" in imported.model) == (50257, False)
    assert imported.notes == (f"line 1: {TIME}",)
