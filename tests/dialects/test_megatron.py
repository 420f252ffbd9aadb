"""A plan in Megatron's arguments: what is said, what is refused, and that reading it back gives the same plan."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import replace
from functools import cache

import pytest
from dialect_cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import parse
from places import cluster

from meshtune.runners.programs.dialects.base import CannotExpress
from meshtune.runners.programs.megatron.flags import Program, flags, programs_with
from meshtune.runners.programs.megatron.options import Flavour, MegatronOptions
from meshtune.runners.programs.megatron.rules import capabilities_of
from meshtune.runners.programs.megatron.workload import render
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.presets import described, model_presets
from meshtune.search_spaces.space import Bounds, Space

DENSE = ModelSpec(name="d", layers=24, hidden=1024, heads=16, kv_heads=4, ffn=2816, vocab=51200, seq_len=2048)
MIXTURE = ModelSpec(
    name="m",
    layers=16,
    hidden=1024,
    heads=16,
    ffn=2048,
    vocab=51200,
    seq_len=2048,
    norm="layernorm",
    activation="gelu",
    position="learned",
    tied_head=True,
    experts=8,
    top_k=2,
)
CLUSTER = cluster(2, 8, "cuda", memory_bytes=2**36)
BOUNDS = Bounds(
    cp=(1, 2, 4),
    ep=(1, 2, 4),
    etp=(0, 1, 2),
    zero_group=(0, 2, 4),
    vpp=(1, 2, 3),
    micro_batch_size=(1, 2),
    recompute=tuple(Recompute),
    recompute_interval=(1, 2, 3),
    schedule=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    sequence_parallel=(True, False),
    context=tuple(ContextParallel),
)
LM, DEEPSPEED = Flavour.MEGATRON_LM, Flavour.MEGATRON_DEEPSPEED


@cache
def space(model: ModelSpec, flavour: Flavour) -> Space:
    """The plans that this Megatron runs on 16 devices with a batch of 48."""
    able = capabilities_of(MegatronOptions(flavour=flavour))
    setting = SpaceContext(model=model, cluster=CLUSTER, global_batch_size=48, capabilities=able)
    return Space(BOUNDS, setting)


def arguments(model: ModelSpec, plan: Plan, **options: object) -> list[str]:
    return render(model, plan, CLUSTER, options)["megatron-args.txt"].splitlines()


def test_a_plan_in_megatron_s_words(stored):
    plan = Plan(
        tp=2,
        pp=2,
        cp=2,
        dp=2,
        vpp=3,
        schedule="interleaved",
        context="ring",
        micro_batch_size=1,
        grad_accum_steps=24,
        zero_stage=1,
        recompute="full",
        recompute_interval=2,
    )
    told = ["--lr 3e-4", "--tokenizer-type GPT2BPETokenizer"]
    assert arguments(DENSE, plan, arguments=told, steps=25) == stored["arguments"]


def test_zero_stages_2_and_3_are_megatron_fsdp_which_refuses_a_single_queue_of_kernels():
    plan = Plan(dp=16, micro_batch_size=3, zero_stage=3)
    files = render(DENSE, plan, CLUSTER, {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "A": "b c"}})
    told = files["megatron-args.txt"]
    assert "--use-megatron-fsdp\n--data-parallel-sharding-strategy optim_grads_params\n" in told
    assert "--ckpt-format fsdp_dtensor\n" in told
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in files["launch.sh"]
    assert "export A='b c'\n" in files["launch.sh"]
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in render(DENSE, Plan(tp=2, dp=8), CLUSTER, {})["launch.sh"]
    assert "--data-parallel-sharding-strategy optim_grads" in arguments(DENSE, Plan(dp=16, zero_stage=2))


@pytest.mark.parametrize("flavour", Flavour)
def test_gpt_2_s_vocabulary_is_padded_for_any_tensor_ranks(flavour):
    plans = space(replace(DENSE, vocab=50257), flavour)
    assert {plan.tp for plan in plans} >= {1, 2, 4, 8 if flavour is LM else 4}


def test_gpt_3_175b_with_gpt_2_s_vocabulary_has_legal_plans():
    shapes = described(model_presets()["gpt3-175b"])
    model = ModelSpec(**{**shapes, "name": "gpt3-175b", "vocab": 50257})
    cluster = replace(CLUSTER, nodes=48)
    able = capabilities_of(MegatronOptions())
    setting = SpaceContext(model=model, cluster=cluster, global_batch_size=1536, capabilities=able)
    assert any(plan.tp == 8 for plan in Space(Bounds(), setting))


def test_the_padding_is_the_user_s():
    plan = Plan(tp=2, dp=8)
    assert not any("divisible" in told for told in arguments(DENSE, plan))
    own = replace(DENSE, vocab=50257, vocab_multiple=64)
    assert {"--vocab-size 50257", "--make-vocab-size-divisible-by 64"} <= set(arguments(own, plan))
    read = parse(render(own, plan, CLUSTER, {})["launch.sh"])
    assert ModelSpec(name="d", **read.model) == own
    assert not any("divisible" in word for word in read.workload["arguments"])
    data = ["--tokenizer-type GPT2BPETokenizer", "--vocab-file v"]
    told = arguments(own, plan, arguments=data)
    assert "--make-vocab-size-divisible-by 64" in told
    assert not any(word.startswith("--vocab-size") for word in told)
    whole = arguments(replace(own, vocab=51200, vocab_multiple=1), plan, arguments=["--padded-vocab-size 51200"])
    assert "--padded-vocab-size 51200" in whole
    assert not any("divisible" in word for word in whole)


@pytest.mark.parametrize("name", ["--padded-vocab-size", "--pad-vocab-size-to"])
def test_a_vocabulary_that_nothing_pads_is_divided_by_the_tensor_ranks(name):
    able = capabilities_of(MegatronOptions(arguments=(f"{name} 50258",)))
    model = replace(DENSE, vocab=50258, vocab_multiple=1)
    setting = SpaceContext(model=model, cluster=CLUSTER, global_batch_size=48, capabilities=able)
    plans = Space(Bounds(), setting)
    assert {plan.tp for plan in plans} == {1, 2}
    (broken,) = plans.explain(plans.complete(tp=4, pp=1))
    assert str(broken).startswith("tp(4) does not divide vocab(50258) (megatron-vocabulary: with --padded-vocab-size")


def test_without_data_of_the_user_s_some_are_made_up():
    told = arguments(DENSE, Plan(dp=16))
    assert told[-5:-2] == ["--mock-data", "--tokenizer-type NullTokenizer", "--vocab-size 51200"]
    assert "--mock-data" not in arguments(DENSE, Plan(dp=16), arguments=["--data-path /a"])


USERS = [
    *("--overlap-grad-reduce", "--overlap-param-gather", "--overlap-param-gather-with-optimizer-step"),
    *("--tp-comm-overlap", "--distribute-saved-activations", "--fsdp-double-buffer", "--ckpt-format fsdp_dtensor"),
    "--no-overlap-p2p-communication",
]


@pytest.mark.parametrize(
    ("plan", "left"),
    [
        (Plan(dp=16), {0, 7}),
        (Plan(dp=16, zero_stage=1), {0, 1, 7}),
        (Plan(pp=2, dp=8, vpp=2, schedule="interleaved", grad_accum_steps=2, zero_stage=1), {0, 1, 2}),
        (Plan(pp=4, dp=4, vpp=2, schedule="interleaved", grad_accum_steps=4), {0, 7}),
        (Plan(tp=2, dp=8, zero_stage=1), {0, 1, 3, 7}),
        (Plan(tp=2, dp=8, sequence_parallel=False, recompute="full"), {0, 4, 7}),
        (Plan(tp=2, dp=8, recompute="full"), {0, 3, 7}),
        (Plan(dp=16, zero_stage=3), {0, 1, 5, 6, 7}),
    ],
    ids=lambda value: value.key if isinstance(value, Plan) else None,
)
def test_what_megatron_refuses_with_the_plan_is_left_out_of_the_user_s_arguments(plan, left):
    told = arguments(DENSE, plan, arguments=USERS)
    assert {index for index, argument in enumerate(USERS) if argument in told} == left
    assert ("--sequence-parallel" in told) == (plan.tp > 1 and plan.sequence_parallel)
    assert ("--use-distributed-optimizer" in told) == (plan.zero_stage > 0)


def test_deepspeed_gets_its_settings_by_file_the_user_s_among_them(stored):
    options = {
        "flavour": "megatron-deepspeed",
        "dtype": "float16",
        "ds_config": {"fp16": {"hysteresis": 2}, "zero_optimization": {"stage": 3, "overlap_comm": True}},
    }
    plan = Plan(tp=2, dp=8, micro_batch_size=2, grad_accum_steps=3, zero_stage=1, recompute="full")
    files = render(DENSE, plan, CLUSTER, options)
    assert json.loads(files["ds_config.json"]) == stored["loads"]
    told = files["megatron-args.txt"].splitlines()
    assert {"--deepspeed", "--zero-stage 1", "--no-pipeline-parallel", "--num-key-value-heads 4"} <= set(told)
    assert {"--deepspeed-activation-checkpointing", "--recompute-method uniform"} <= set(told)
    assert "--use-distributed-optimizer" not in told
    assert '--deepspeed_config "$HERE/ds_config.json"' in files["launch.sh"]
    assert "--no-pipeline-parallel" not in arguments(DENSE, Plan(pp=2, dp=8, grad_accum_steps=2), **options)
    groups = [arguments(MIXTURE, Plan(dp=16, zero_stage=stage), flavour="megatron-deepspeed") for stage in (0, 1)]
    assert ["--create-moe-param-group" in told for told in groups] == [False, True]


@pytest.mark.parametrize(
    ("flavour", "model", "plan", "rule"),
    [
        (LM, DENSE, Plan(pp=2, dp=8, zero_stage=2, grad_accum_steps=2), "zero"),
        (LM, DENSE, Plan(pp=2, dp=8, grad_accum_steps=2, schedule="gpipe"), "trainer-schedule"),
        (
            LM,
            DENSE,
            Plan(pp=4, dp=4, vpp=2, grad_accum_steps=6, schedule="interleaved"),
            "megatron-interleaved-batches",
        ),
        (LM, MIXTURE, Plan(tp=2, dp=8, sequence_parallel=False), "megatron-expert-sequence"),
        (LM, DENSE, Plan(dp=16, recompute="selective", recompute_interval=2), "megatron-selective-interval"),
        (LM, DENSE, Plan(dp=16, recompute="full", recompute_interval=5), "megatron-recompute-block"),
        (DEEPSPEED, DENSE, Plan(dp=16, recompute="full", recompute_interval=2), "trainer-recompute-interval"),
        (DEEPSPEED, DENSE, Plan(cp=2, dp=8), "trainer-cp"),
        (DEEPSPEED, DENSE, Plan(cp=2, pp=2, dp=4, context="ulysses"), "megatron-deepspeed-context-pipeline"),
        (DEEPSPEED, DENSE, Plan(cp=2, tp=2, dp=4, context="ulysses"), "megatron-deepspeed-context-sequence"),
        (DEEPSPEED, MIXTURE, Plan(dp=16, zero_stage=3), "megatron-deepspeed-expert-zero"),
        (DEEPSPEED, DENSE, Plan(pp=2, dp=8, zero_stage=3, grad_accum_steps=2), "zero"),
    ],
)
def test_a_plan_that_megatron_has_no_words_for_is_refused_by_the_rule(flavour, model, plan, rule):
    with pytest.raises(CannotExpress, match=rf"^{flavour} cannot run this plan: .*\({rule}: ") as raised:
        render(model, plan, CLUSTER, {"flavour": str(flavour)})
    assert len(raised.value.problems) == 1


@cases
def test_wrong_options_are_told(options, problem):
    with pytest.raises(InvalidValue, match=problem):
        render(DENSE, Plan(dp=16), CLUSTER, options)


@pytest.mark.parametrize("flavour", Flavour)
@pytest.mark.parametrize("model", [DENSE, MIXTURE], ids=["dense", "mixture"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_was_written_reads_back_as_the_same_plan_and_model(model, flavour, data):
    plans = space(model, flavour)
    plan = plans[data.draw(st.integers(0, len(plans) - 1))]
    options = {"flavour": str(flavour), "directory": "/a b", "arguments": ["--lr 1e-4", "--split '9, 1'"], "setup": []}
    files = render(model, plan, CLUSTER, options)
    imported = parse(files["launch.sh"])
    assert Plan(**imported.plan) == plan
    assert (imported.nodes, imported.devices_per_node, imported.global_batch_size) == (2, 8, 48)
    shapes = {"vocab": model.vocab, **imported.model}  # Megatron-DeepSpeed is not told of it
    assert ModelSpec(name=model.name, **shapes) == model
    assert MegatronOptions(**{k: v for k, v in imported.workload.items() if k != "kind"}).given["--split"] == ("9, 1",)
    bare = parse(files["megatron-args.txt"])
    # Of how many devices they do not say.
    devices = {name: getattr(plan, name) for name in ("dp", "grad_accum_steps", "zero_group")}
    assert Plan(**{**bare.plan, **devices}) == plan
    assert any(question.path == "baseline.zero_group" for question in bare.questions) is (plan.zero_group > 0)


def test_sharding_groups_are_instances_of_the_optimizer_and_experts_have_a_degree_of_their_own():
    plan = Plan(tp=2, cp=2, dp=4, ep=8, etp=1, zero_stage=1, zero_group=4, context="ring", grad_accum_steps=12)
    told = arguments(MIXTURE, plan)
    assert {"--num-distributed-optimizer-instances 2", "--expert-tensor-parallel-size 1"} <= set(told)
    usual = arguments(MIXTURE, replace(plan, zero_group=0, etp=0))
    assert not any("instances" in line or "expert-tensor" in line for line in usual)


def test_experts_of_megatron_deepspeed_are_cut_over_tensor_ranks_where_it_is_told_so():
    told = {tp: arguments(MIXTURE, Plan(tp=tp, dp=16 // tp), flavour="megatron-deepspeed") for tp in (1, 2)}
    switch = "--enable-expert-tensor-parallelism"
    assert [switch in told[tp] for tp in (1, 2)] == [False, True]
    asked = {}
    for lines in (told[2], [line for line in told[2] if line != switch]):
        imported = parse(f"deepspeed pretrain_gpt.py {' '.join(lines)} --deepspeed")
        asked[switch in lines] = [question.text for question in imported.questions if question.path == "baseline.etp"]
        assert switch not in imported.workload["arguments"]
    assert asked[True] == []
    assert ["each tensor rank computes whole experts" in text for text in asked[False]] == [True]


def test_gradients_that_are_reduced_in_float32_have_one_instance():
    given = ["--ddp-reduce-scatter-with-fp32-accumulation"]
    with pytest.raises(CannotExpress, match=r"\(trainer-zero-group: "):
        arguments(DENSE, Plan(dp=16, zero_stage=1, zero_group=8), arguments=given)


@pytest.mark.slow
def test_the_script_starts_one_rank_or_a_node_s_ranks(tmp_path):
    (tmp_path / "torch_standin.py").write_text(
        "import json, os, sys\n"
        "json.dump([sys.argv[1:], {k: os.environ.get(k) for k in ('RANK', 'A')}], open('told.json', 'w'))\n"
    )
    options = {"script": str(tmp_path / "torch_standin.py"), "arguments": ["--split '9, 1'"], "env": {"A": "it's"}}
    files = render(DENSE, Plan(tp=2, dp=8), CLUSTER, {**options, "setup": ["export A=changed"]})
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {"PATH": os.environ["PATH"], "RANK": "3"}
    subprocess.run(["bash", "launch.sh"], cwd=tmp_path, env=environment, timeout=30, check=True)
    words, seen = json.loads((tmp_path / "told.json").read_text())
    assert words == [word for line in files["megatron-args.txt"].splitlines() for word in shlex.split(line)]
    assert seen == {"RANK": "3", "A": "changed"}
    (tmp_path / "python3").write_text('#!/bin/bash\nprintf "%s\\n" "$@" > started.txt\n')
    (tmp_path / "python3").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_RANK": "1", "MASTER_ADDR": "n0"}
    subprocess.run(["bash", "launch.sh"], cwd=tmp_path, env=environment, timeout=30, check=True)
    started = (tmp_path / "started.txt").read_text().split("\n")
    assert started[:12] == [
        *("-m", "torch.distributed.run", "--nproc_per_node", "8", "--nnodes", "2"),
        *("--node_rank", "1", "--master_addr", "n0", "--master_port", "29500"),
    ]
    assert started[12:-1] == [options["script"], *words]


SCHEDULE = [
    *("--lr 3e-4", "--min-lr 3e-5", "--lr-decay-style cosine", "--lr-warmup-iters 2000", "--train-iters 100000"),
    *("--data-path 0.5 '/a b' 0.5 /c", "--tokenizer-type GPT2BPETokenizer", "--save /ckpt", "--eval-iters 10"),
]


def test_what_the_user_s_script_had_survives_import_and_export():
    plan = Plan(tp=2, dp=8, micro_batch_size=1, grad_accum_steps=6)
    script = render(DENSE, plan, CLUSTER, {"arguments": SCHEDULE, "directory": "/opt/Megatron-LM"})["launch.sh"]
    imported = parse(script)
    options = {name: value for name, value in imported.workload.items() if name != "kind"}
    files = render(DENSE, Plan(tp=4, dp=4, micro_batch_size=2, grad_accum_steps=6), CLUSTER, options)
    assert set(SCHEDULE) <= set(files["megatron-args.txt"].splitlines())
    assert "Fill in" not in files["launch.sh"]


@pytest.mark.parametrize("flavour", Flavour)
def test_an_export_has_what_megatron_needs_to_start_and_names_what_is_to_be_filled_in(flavour):
    files = render(DENSE, Plan(dp=16), CLUSTER, {"flavour": str(flavour)})
    assert {"--lr 1.0e-4", "--train-iters STEPS"} <= set(files["megatron-args.txt"].splitlines())
    assert "# Fill in before a training: --lr 1.0e-4, --train-iters STEPS." in files["launch.sh"]
    assert "# Fill in before a training: your data and tokenizer" in files["launch.sh"]
    told = arguments(DENSE, Plan(dp=16), flavour=str(flavour), arguments=["--train-samples 1000", "--lr 1"])
    assert not any(line.startswith("--train-iters") for line in told)


def test_the_experts_of_megatron_deepspeed_are_in_every_layer_unless_the_user_says_otherwise():
    plan, flavour = Plan(dp=16), "megatron-deepspeed"
    assert "--expert-interval 1" in arguments(MIXTURE, plan, flavour=flavour)
    assert "--expert-interval 2" in arguments(MIXTURE, plan, flavour=flavour, arguments=["--expert-interval 2"])


def test_every_argument_that_is_written_is_one_of_the_program_s():
    for flavour, program in ((LM, Program.LM), (DEEPSPEED, Program.DEEPSPEED)):
        for model in (DENSE, MIXTURE):
            plans = space(model, flavour)
            names = {
                line.split()[0]
                for index in range(0, len(plans), max(1, len(plans) // 100))
                for line in arguments(model, plans[index], flavour=str(flavour))
            }
            assert program in programs_with(names)
            assert names <= flags().keys()
