"""Starts of Hugging Face's Trainer and of Accelerate as campaigns: what is read, asked for, refused."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from dialect_cases import cases, stored_for
from launches import launch_of
from places import cluster

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.accelerate.special import render
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.programs import read_start
from meshtune.runners.programs.transformers.reader import is_file, is_program, read_file_text, read_launch
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

GIVEN = stored_for(__name__)["given"]

LLAMA = GIVEN["llama"]
MODEL = GIVEN["model"]
ARGUMENTS = (
    "train.py --model_name_or_path ./llama --block_size 2048 --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --output_dir out --learning_rate 2e-5"
)
TORCHRUN = f"torchrun --nnodes 2 --nproc-per-node 8 {ARGUMENTS}"
FSDP = GIVEN["fsdp"]
DEEPSPEED = GIVEN["deepspeed"]


def read(command: str, files: dict[str, Any] | None = None, **changes: Any) -> Imported:
    texts = {name: text if isinstance(text, str) else yaml.safe_dump(text) for name, text in (files or {}).items()}
    texts.setdefault("./llama/config.json", json.dumps(LLAMA))
    launch = launch_of(command, files=texts, **{"nodes": 2, "devices_per_node": 8, **changes})
    assert is_program(launch)
    return read_launch(launch)


def asked(imported: Imported) -> list[str]:
    return [question.path for question in imported.questions]


def started(imported: Imported, plan: Plan, real: bool = False) -> tuple[str, list[str]]:
    """The lines of a trial, or of the real launch, but for the last, and the words of that."""
    workload = create_workload("command", {name: value for name, value in imported.workload.items() if name != "kind"})
    model = ModelSpec(**{**MODEL, "name": "m"})
    job = workload.materialize(
        JobRequest("t", model, plan, cluster(2, 8, "cuda"), Path("/job"), seed=0, time_limit_s=9, real=real)
    )
    *before, last = job.command[-1].splitlines()
    return "\n".join(before), shlex.split(last)


def pairs(words: list[str]) -> dict[str, str]:
    return {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}


def test_a_start_by_torchrun_is_ddp_with_its_batch_and_model(stored):
    imported = read(f"{TORCHRUN} --bf16 --gradient_checkpointing --save_strategy epoch")
    assert dict(imported.model) == MODEL
    assert dict(imported.plan) == stored["plan"]
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (128, 2, 8)
    assert imported.questions == ()
    assert dict(imported.space) == {"zero_stage": [0], "recompute": ["none", "full"]}
    assert (imported.workload["dtype"], imported.workload["start"], imported.workload["fixed"]) == (
        "bfloat16",
        "device",
        {"zero_stage": 0},
    )


def test_a_trial_is_the_users_script_with_the_plans_batch_and_without_saves():
    imported = read(f"{TORCHRUN} --bf16 True --save_steps 10 --run_name '{{a}} b'", env={"A": "{x}"}, directory="/w")
    before, words = started(imported, Plan(dp=16, micro_batch_size=4, grad_accum_steps=2, recompute="full"))
    assert words[:5] == ["exec", "python3", "-m", "meshtune.runners.report", "train.py"]
    said = pairs(words)
    assert (said["--per_device_train_batch_size"], said["--gradient_accumulation_steps"]) == ("4", "2")
    assert (said["--max_steps"], said["--save_strategy"], said["--output_dir"]) == ("20", "no", "/job/output")
    assert (said["--learning_rate"], said["--bf16"], words[5]) == ("2e-5", "True", "$recompute")
    assert not {"--save_steps", "--run_name"} & said.keys()
    real = pairs(started(imported, Plan(dp=16, micro_batch_size=4, grad_accum_steps=2), real=True)[1])
    assert (real["--save_steps"], real["--run_name"], real["--per_device_train_batch_size"]) == ("10", "{a} b", "4")
    assert not {"--max_steps", "--report_to", "--save_strategy", "-m"} & real.keys()
    assert before.startswith("case full in none) recompute='--gradient_checkpointing False';; full) recompute='--grad")


def test_fsdp_of_the_trainer_may_be_each_stage_that_it_has():
    imported = read(f"{TORCHRUN} --bf16 --fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json", {"fsdp.json": "{}"})
    assert imported.plan["zero_stage"] == 3
    assert imported.space["zero_stage"] == [0, 2, 3]
    before, words = started(imported, Plan(dp=16, zero_stage=2))
    assert words[5:7] == ["$recompute", "$@"]
    assert before.endswith(
        "case 2 in 0) set -- ;; 2) set -- --fsdp 'shard_grad_op auto_wrap';; 3) set -- --fsdp 'full_shard auto_wrap';; "
        "*) echo 'no such sharding' >&2; exit 2;; esac"
    )


@cases
def test_what_shards_is_read_from_options_and_their_file(options, config, plan):
    imported = read(f"{TORCHRUN} --bf16 {options} --fsdp_config f.json", {"f.json": json.dumps(config)})
    assert plan.items() <= imported.plan.items()
    assert imported.questions == ()


def test_accelerates_file_says_what_shards_the_devices_and_the_format():
    imported = read(f"accelerate launch --config_file a.yaml {ARGUMENTS}", {"a.yaml": FSDP}, nodes=None)
    assert (imported.plan["zero_stage"], imported.global_batch_size, imported.workload["dtype"]) == (2, 128, "bfloat16")
    assert (imported.nodes, imported.devices_per_node, imported.questions) == (2, 8, ())
    before, words = started(imported, Plan(dp=16, zero_stage=3))
    assert words[:5] == ["exec", "accelerate", "launch", "--config_file", "a.yaml"]
    said = pairs(words)
    assert (said["--num_machines"], said["--num_processes"], said["--machine_rank"]) == ("2", "16", "${NODE_RANK:-0}")
    assert "3) set -- --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true;;" in before
    assert words.index("$@") < words.index("-m") == words.index("train.py") - 2
    assert imported.workload["start"] == "node"


def test_weights_that_are_sharded_in_a_node_stay_so_in_trials():
    words = (
        "--use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --mixed_precision bf16 --num_processes 16 --num_machines 2"
    )
    imported = read(f"accelerate launch {words} {ARGUMENTS}")
    assert (imported.plan["zero_stage"], imported.plan["zero_group"]) == (3, 8)
    assert imported.workload["fixed"]["zero_group"] == 8
    before, _ = started(imported, Plan(dp=16, zero_stage=2, zero_group=8))
    assert "2) set -- --use_fsdp --fsdp_version 1 --fsdp_sharding_strategy HYBRID_SHARD_ZERO2;;" in before


@pytest.mark.parametrize(
    "plan", [Plan(dp=16, zero_stage=3, zero_group=4), Plan(cp=2, dp=8, zero_stage=2, zero_group=8)]
)
def test_replicas_of_shards_are_written_read_and_told_to_trials(plan):
    shape = ModelSpec(name="m", layers=16, hidden=512, heads=16, ffn=2048, vocab=1024, seq_len=256)
    text = render(shape, plan, cluster(2, 8, "cuda"))["accelerate.yaml"]
    imported = read(f"accelerate launch --config_file a.yaml {ARGUMENTS}", {"a.yaml": yaml.safe_load(text)}, nodes=None)
    assert [imported.plan.get(name, 1) for name in ("cp", "zero_stage", "zero_group")] == [
        *(plan.cp, plan.zero_stage, plan.zero_group),
    ]
    assert "zero_group" not in imported.workload.get("fixed", {})
    words = started(imported, plan)[1]
    said = pairs(words)
    assert words.count("--use_parallelism_config") == 1
    sizes = [said[f"--parallelism_config_dp_{name}_size"] for name in ("replicate", "shard")]
    assert sizes == [str(16 // plan.zero_group), str(plan.zero_group // plan.cp)]


@pytest.mark.slow
def test_a_mesh_that_the_devices_do_not_have_is_asked():
    mesh = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4}
    words = f"accelerate launch --config_file a.yaml {ARGUMENTS}"
    imported = read(words, {"a.yaml": {**FSDP, "parallelism_config": mesh}})
    (question,) = [question for question in imported.questions if question.path == "baseline.zero_group"]
    assert "parallelism_config_dp_shard_size 4: ZeRO shards over groups of ranks" in question.text


def test_accelerates_own_parser_takes_the_mesh_of_a_trial(tmp_path, monkeypatch):
    launch = pytest.importorskip("accelerate.commands.launch")
    mesh = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8}
    file = {**FSDP, "parallelism_config": mesh}
    imported = read(f"accelerate launch --config_file a.yaml {ARGUMENTS}", {"a.yaml": file}, nodes=None)
    before, words = started(imported, Plan(dp=16, zero_stage=3, zero_group=4))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(file))
    stage = next(shlex.split(part.split("set -- ")[1]) for part in before.split(";;") if part.endswith("true"))
    head = [word for each in words[3 : words.index("-m")] for word in (stage if each == "$@" else [each])]
    plain = [{"${NODE_RANK:-0}": "0", "${MASTER_PORT:-29500}": "29500"}.get(word, word) for word in head]
    args = launch._validate_launch_command(launch.launch_command_parser().parse_args([*plain, "train.py"]))[0]
    assert (args.use_fsdp, args.use_parallelism_config) == (True, True)
    assert (args.parallelism_config_dp_replicate_size, args.parallelism_config_dp_shard_size) == (4, 4)


@pytest.mark.parametrize(
    ("launcher", "document", "plan", "dtype"),
    [
        (
            "--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP --mixed_precision fp16",
            None,
            {"zero_stage": 2},
            "float16",
        ),
        ("--use_fsdp --fsdp_sharding_strategy 1 --mixed_precision bf16", None, {"zero_stage": 3}, "bfloat16"),
        ("--multi_gpu --mixed_precision=bf16", None, {"zero_stage": 0}, "bfloat16"),
        ("--use_deepspeed --zero_stage 1 --mixed_precision bf16", None, {"zero_stage": 1}, "bfloat16"),
        ("--mixed_precision fp16", FSDP, {"zero_stage": 2}, "float16"),
        (
            "",
            {**FSDP, "fsdp_config": {"fsdp_sharding_strategy": "NO_SHARD"}},
            {"zero_stage": 0},
            "bfloat16",
        ),
        (
            "",
            {**FSDP, "parallelism_config": {"parallelism_config_tp_size": 2, "parallelism_config_dp_shard_size": 8}},
            {"tp": 2, "dp": 8, "sequence_parallel": False},
            "bfloat16",
        ),
        (
            "",
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}, "mixed_precision": "bf16"},
            {"zero_stage": 3},
            "bfloat16",
        ),
        (
            "",
            {
                "distributed_type": "MEGATRON_LM",
                "mixed_precision": "bf16",
                "megatron_lm_config": {"megatron_lm_tp_degree": 2, "megatron_lm_pp_degree": 4},
            },
            {"tp": 2, "pp": 4, "sequence_parallel": False, "zero_stage": 0, "dp": 2},
            "bfloat16",
        ),
        ("", {"distributed_type": "MULTI_GPU", "mixed_precision": "fp16"}, {"zero_stage": 0}, "float16"),
    ],
)
def test_accelerates_words_count_more_than_its_file(launcher, document, plan, dtype):
    file = "" if document is None else "--config_file a.yaml "
    imported = read(f"accelerate launch {file}{launcher} {ARGUMENTS}", {"a.yaml": document or {}})
    assert plan.items() <= imported.plan.items()
    assert (imported.workload["dtype"], imported.questions) == (dtype, ())


@pytest.mark.parametrize(
    "launcher", ["python -m accelerate.commands.launch --multi_gpu", "/venv/bin/accelerate-launch --multi_gpu"]
)
def test_accelerate_is_accelerate_by_any_name_and_never_megatron(launcher):
    command = f"{launcher} pretrain_gpt.py --num-layers 2 --hidden-size 64 --micro-batch-size 2"
    assert not is_program(launch_of(command))
    imported = read_start(launch_of(command))
    assert imported.workload["kind"] == "command"
    assert imported.workload["command"] == shlex.split(command)
    assert (imported.workload["start"], imported.workload["fixed"]) == ("node", {"micro_batch_size": 2})


def test_what_accelerate_is_told_of_one_start_is_named_and_the_rest_kept():
    words = "--multi_gpu --num_processes 8 --machine_rank 0 --max_restarts=3 --dynamo_backend no --mixed_precision bf16"
    imported = read(f"accelerate launch {words} {ARGUMENTS}")
    (places, care) = (note for note in imported.notes if "left out" in note)
    assert "--machine_rank 0, left out: each trial has its own nodes" in places
    assert "--max_restarts 3, left out: meshtune keeps the logs" in care
    assert "--dynamo_backend no" in imported.workload["command"]


@pytest.mark.parametrize("switch", ["--bf16", "--fp16 true"])
def test_auto_of_deepspeeds_file_is_what_the_command_says(switch):
    command = f"deepspeed --num_gpus 8 {ARGUMENTS} {switch} --deepspeed ds.json"
    imported = read(command, {"ds.json": json.dumps(DEEPSPEED)}, nodes=1)
    read_of = {"zero_stage": 3, "micro_batch_size": 2, "grad_accum_steps": 4, "dp": 8, "recompute": "none"}
    assert dict(imported.plan) == read_of
    assert (imported.global_batch_size, imported.questions) == (64, ())
    assert imported.workload["dtype"] == ("bfloat16" if switch == "--bf16" else "float16")
    config = imported.workload["configs"]["ds_config.json"]
    assert config["base"] == DEEPSPEED
    assert config["set"]["zero_optimization.stage"] == "{zero_stage}"
    assert pairs(started(imported, Plan(dp=16, zero_stage=1))[1])["--deepspeed"] == "/job/ds_config.json"


def test_deepspeeds_file_of_accelerate_goes_with_the_trial():
    document = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}}
    files = {"a.yaml": document, "ds.json": json.dumps({**DEEPSPEED, "bf16": {"enabled": True}})}
    imported = read(f"accelerate launch --config_file a.yaml {ARGUMENTS} --bf16", files)
    assert (imported.plan["zero_stage"], imported.workload["dtype"]) == (3, "bfloat16")
    assert pairs(started(imported, Plan(dp=16, zero_stage=1))[1])["--deepspeed_config_file"] == "/job/ds_config.json"


@pytest.mark.parametrize(("ranks", "group"), [(4, 4), (16, None), (3, None)])
def test_groups_of_mics_in_deepspeeds_file_are_those_of_the_devices_and_stay(ranks, group):
    zero = {"stage": 3, "mics_shard_size": ranks}
    files = {"ds.json": json.dumps({**DEEPSPEED, "zero_optimization": zero})}
    imported = read(f"deepspeed {ARGUMENTS} --bf16 --deepspeed ds.json", files)
    assert imported.plan.get("zero_group") == group
    questions = [question.text for question in imported.questions if question.path == "baseline.zero_group"]
    assert ["mics_shard_size 3: ZeRO shards" in text for text in questions] == [True] * (ranks == 3)
    # Other stages have none.
    assert imported.workload["fixed"] == {"zero_stage": 3, "zero_group": None if ranks == 3 else ranks}
    assert imported.workload["configs"]["ds_config.json"]["base"]["zero_optimization"]["mics_shard_size"] == ranks


@pytest.mark.parametrize(
    ("words", "framework"),
    [
        ("--dtype bfloat16", "fsdp-pure-bf16"),
        ("--torch_dtype bfloat16 --bf16 False", "fsdp-pure-bf16"),
        ("--torch_dtype bfloat16 --bf16", "fsdp"),
        ("--dtype float32 --bf16", "fsdp"),
        ("--bf16 --use_liger_kernel", "fsdp-fused-loss"),
        ("--bf16 --use_liger_kernel False", "fsdp"),
        ("--bf16 --use_liger_kernel --deepspeed ds.json", "deepspeed"),
    ],
)
def test_weights_and_loss_are_predicted_as_the_words_say(words, framework):
    imported = read(f"{TORCHRUN} {words}", {"ds.json": json.dumps(DEEPSPEED)})
    assert imported.workload["framework"] == framework


def test_offloading_keeps_its_stage_and_is_told():
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    files = {"ds.json": json.dumps({**DEEPSPEED, "zero_optimization": zero})}
    imported = read(f"deepspeed {ARGUMENTS} --bf16 --deepspeed ds.json", files)
    assert any("offload_optimizer" in note for note in imported.notes)
    assert dict(imported.space) == {"zero_stage": [3], "recompute": ["none", "full"]}
    assert imported.workload["fixed"] == {"zero_stage": 3}


def test_an_own_scripts_answers_are_specs_and_settings_tell_its_batch():
    files = {
        "ds.json": json.dumps({**DEEPSPEED, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8})
    }
    imported = read(
        "deepspeed tune.py --model_name ./llama --max_seq_length 512 --output_dir o --deepspeed ds.json", files
    )
    assert (imported.plan["micro_batch_size"], imported.space["recompute"]) == (2, ["none", "selective", "full"])
    assert "baseline.recompute" in asked(imported)
    for answer in ("none", "full"):
        answered = dict(imported.workload, fixed={**imported.workload.get("fixed", {}), "recompute": answer})
        started(replace(imported, workload=answered), Plan(dp=16, micro_batch_size=4, zero_stage=3, recompute=answer))
        assert answered["fixed"] == {"recompute": answer}


@cases
def test_what_is_not_said_is_asked_for_and_never_assumed(change, paths):
    command = f"{TORCHRUN} --bf16"
    for old, new in change.items():
        command = command.replace(old, new)
    assert asked(read(command)) == paths


def test_fsdp_on_cpus_is_asked_about_since_accelerate_leaves_it_out():
    for document, arguments in (({**FSDP, "use_cpu": True}, ""), (FSDP, " --use_cpu")):
        imported = read(f"accelerate launch --config_file a.yaml {ARGUMENTS}{arguments}", {"a.yaml": document})
        assert asked(imported) == ["baseline.zero_stage"]
        assert "runs DDP in place of FSDP" in imported.questions[0].text


def test_devices_that_are_not_known_leave_the_batch_open():
    imported = read(f"{TORCHRUN} --bf16", nodes=None)
    assert (imported.global_batch_size, asked(imported)) == (None, ["global_batch_size"])
    imported = read(f"accelerate launch {ARGUMENTS} --bf16")
    assert asked(imported) == ["baseline.zero_stage"]
    assert "default_config.yaml" in imported.questions[0].text


def test_the_scripts_own_fsdp_counts_under_accelerate():
    imported = read(f"accelerate launch --multi_gpu --num_processes 16 {ARGUMENTS} --bf16 --fsdp full_shard")
    assert (imported.plan["zero_stage"], imported.space["zero_stage"]) == (3, [0, 2, 3])
    before, words = started(imported, Plan(dp=16, zero_stage=2))
    assert "2) set -- --fsdp shard_grad_op;;" in before
    assert words[:4] == ["exec", "accelerate", "launch", "--multi_gpu"]
    assert words[words.index("train.py") + 1 :][:2] == ["$recompute", "$@"]


@pytest.mark.parametrize(
    ("name", "stage", "ranks"),
    [("single_gpu", 0, 1), ("multi_gpu", 0, 8), ("zero1", 1, 8), ("zero2", 2, 8), ("zero3", 3, 8), ("fsdp2", 3, 8)],
)
def test_settings_of_accelerate_that_trl_names(name, stage, ranks):
    words = "--model_name_or_path ./llama --max_length 2048 --gradient_checkpointing true"
    launcher = "accelerate launch trl/scripts/sft.py"
    imported = read(f"{launcher} {words} --accelerate_config {name}", nodes=None, devices_per_node=None)
    assert (imported.plan["zero_stage"], imported.plan["recompute"]) == (stage, "full")
    assert (imported.nodes, imported.devices_per_node, imported.global_batch_size) == (1, ranks, 8 * ranks)
    assert (imported.workload["dtype"], imported.questions) == ("bfloat16", ())
    last = started(imported, Plan(dp=16, zero_stage=stage))[1]
    assert pairs(last)["--config_file"] == "/job/accelerate.yaml"
    assert "--accelerate_config" not in last


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--use_peft --lora_r 16 --lora_alpha 8", "adapters of q v: no word names others"),
        ("--lora_r 16 --lora_alpha 8", "adapters of q v: no word names others"),
        ("--lora_r 16 --lora_target_modules q_proj v_proj", ""),
        ("--use_lora False --lora_r 16", ""),
        ("--tuner_type ia3", "adapters of another kind than LoRA"),
        ("--finetuning_type full", ""),
        ("--load_in_4bit True --load_in_8bit False", "--load_in_4bit True: the base model"),
        ("--freeze_vit true --freeze_llm false", "--freeze_vit true: not all weights"),
        ("--ref_model ./llama", "--ref_model ./llama: taken for dpo"),
        ("--packing", "--packing: a row holds"),
        ("--packing false", ""),
    ],
)
def test_what_is_not_trained_whole_is_asked_once(words, told):
    questions = read(f"{TORCHRUN} --bf16 {words}").questions
    assert len(questions) == bool(told)
    assert all(told in question.text for question in questions)


def test_what_the_trainer_takes_by_default_is_its_own():
    command = f"{TORCHRUN} --bf16".replace("--per_device_train_batch_size 2 --gradient_accumulation_steps 4 ", "")
    imported = read(command.replace("train.py", "examples/run_clm.py"))
    assert (imported.plan["micro_batch_size"], imported.plan["grad_accum_steps"], imported.questions) == (8, 1, ())


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (
            {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257},
            {"ffn": 3072, "norm": "layernorm", "activation": "gelu", "position": "learned", "tied_head": True},
        ),
        (
            {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            {"experts": 8, "top_k": 2, "tied_head": False},
        ),
    ],
)
def test_other_families_have_other_keys(config, model):
    imported = read(f"{TORCHRUN} --bf16", {"./llama/config.json": json.dumps(config)})
    assert model.items() <= imported.model.items()
    assert imported.questions == ()


def test_a_models_name_is_its_preset():
    imported = read(f"{TORCHRUN} --bf16".replace("./llama", "meta-llama/Meta-Llama-3-8B"))
    assert (imported.model["layers"], imported.model["kv_heads"], imported.model["seq_len"]) == (32, 8, 2048)
    assert imported.questions == ()


@pytest.mark.parametrize(
    ("command", "files", "told"),
    [
        (TORCHRUN, {"./llama/config.json": '{"model_type": "bert"}'}, r"is a model of 'bert'|a model of bert"),
        (TORCHRUN.replace("./llama", "google-t5/t5-large"), {}, "a model of t5"),
        (f"{TORCHRUN} --deepspeed ds.json", {}, r"ds\.json, are not there.* Next: make the file"),
        (f"accelerate launch --config_file a.yaml {ARGUMENTS}", {}, r"a\.yaml, are not there.* Next: make the file"),
        (
            f"accelerate launch --config_file '\x01$1\x02' {ARGUMENTS}",
            {},
            r"\$1, which is not known here\. Next: meshtune import --capture",
        ),
        ("accelerate launch --use_fsdp train.py config.yaml", {}, r"config\.yaml, which is not read\. Next: "),
        (
            f"accelerate launch --config_file a.yaml {ARGUMENTS}",
            {"a.yaml": {"distributed_type": "TPU"}},
            "'TPU' is none",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_next_step(command, files, told):
    with pytest.raises(CannotRead, match=told):
        read(command, files)


def test_other_programs_starts_are_none_of_the_trainers():
    for command in (
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --seq-length 128 --micro-batch-size 2",
        "torchrun train.py --deepspeed_config ds.json",
        "torchrun train.py --job.config_file a.toml",
    ):
        assert not is_program(launch_of(command))


def test_a_file_of_accelerate_alone_asks_for_its_script():
    text = yaml.safe_dump(FSDP)
    assert is_file("a.yaml", text)
    assert not is_file("a.yaml", "name: x\nmodel: {}\n")
    imported = read_file_text("a.yaml", text)
    assert (imported.plan["zero_stage"], imported.nodes, imported.devices_per_node) == (2, 2, 8)
    assert asked(imported)[0] == ""
    assert {"model.layers", "baseline.micro_batch_size"} <= set(asked(imported))


# Trainer.log of transformers 5.23.0 by PrinterCallback, whose numbers are texts, and of 4.x.
SUMMARIES = (
    "{'train_runtime': '1.812', 'train_samples_per_second': '70.65', 'train_steps_per_second': '4.416', 'epoch': '1'}",
    "{'train_runtime': 1.812, 'train_samples_per_second': 70.65, 'train_steps_per_second': 4.416, 'epoch': 1.0}",
)


@pytest.mark.parametrize("summary", SUMMARIES)
def test_the_trainers_own_summary_is_a_measurement_of_one_mean(tmp_path, summary):
    # As docs/how-to/huggingface.md has them.
    log = {"steps_per_s": r"'train_steps_per_second': '?([\d.]+)", "loss": r"^\{'loss': '?([\d.]+)"}
    options = {"command": "train {micro_batch_size} {grad_accum_steps}", "log": log, "steps": 8, "warmup_steps": 0}
    workload = create_workload("command", options)
    model = ModelSpec(**{**MODEL, "name": "m"})
    job = workload.materialize(JobRequest("t", model, Plan(dp=2), cluster(1, 2), tmp_path, seed=0, time_limit_s=9))
    for name, text in job.files.items():
        (tmp_path / name).write_text(text)
    log_path(tmp_path, 0).write_text(f"{{'loss': '6.246', 'grad_norm': '0.4', 'epoch': '0.1'}}\n{summary}\n")
    measured = workload.read(tmp_path, JobStatus(state=JobState.SUCCEEDED, exit_code=0)).measurement
    assert measured.step_times_s == pytest.approx([1 / 4.416])
    assert measured.first_losses == (6.246,)
