"""Starts of programs that are known: what is read as far as their tables go, and of the others as of any command."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_lab import run_meshtune

from meshtune.runners.programs.launch_words import laid_over
from meshtune.runners.programs.table import lines
from meshtune.tuner.specs.document import parse_yaml

run = partial(run_meshtune, Path())

# No table says more than how they start: each is a plain command.
PLAIN = {
    "python -m levanter.main.train_lm --config_path train.yaml": ("-m", "levanter.main.train_lm"),
    "torchrun --nnodes 2 --nproc-per-node 8 OLMo/scripts/train.py train.yaml": ("OLMo/scripts/train.py",),
    "fairseq-train data-bin --fp16 \\\n  --max-tokens 4096": ("-m", "fairseq_cli.train", "data-bin"),
    "colossalai run --nproc_per_node 8 train.py": ("train.py",),
    "torchrun --nnodes=2 --nproc_per_node=8 run_train.py --config-file train.yaml": ("run_train.py",),
}
# Read as far as their tables go: a start, what its spec says, and what of the words trials leave out.
LITGPT = "train.micro_batch_size 4 --train.global_batch_size 64 --precision bf16-mixed --out_dir /data/mine"
READ: dict[str, tuple[str, dict[str, Any], str]] = {
    "verl": (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.nnodes=2 "
        "trainer.n_gpus_per_node=4 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=4 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 data.max_prompt_length=1024 "
        "data.max_response_length=3072 actor_rollout_ref.rollout.tensor_model_parallel_size=4 "
        "trainer.default_local_dir=/data/mine trainer.save_freq=5 trainer.resume_mode=auto "
        "trainer.rollout_data_dir=/data/rows actor_rollout_ref.actor.use_kl_loss=True algorithm.adv_estimator=grpo",
        {
            "training.rollout.tp": 4,
            "training.rollout.answer_tokens": 3072,
            "training.rollout.updates": 16,
            "training.rollout.share": 0.5,
            "training.rollout.graphs": True,
            "training.beside": [{"role": "reference", "bits": 32}],
            "workload.steps": 6,
            "workload.log.step_time_s": r"timing_s/step:(?:np\.\w+\()?([\d.e+-]+)",
            "model.layers": 36,
            "model.seq_len": 4096,
            "global_batch_size": 256,
            "baseline.micro_batch_size": 2,
            "baseline.zero_stage": 3,
            "baseline.tp": 1,
            "baseline.recompute": "full",
            "workload.start": "job",
        },
        "/data/mine resume_mode=auto save_freq=5 /data/rows",
    ),
    "nemo-rl": (
        "uv run examples/run_grpo.py --config conf/rl/own.yaml cluster.num_nodes=2 grpo.num_prompts_per_step=64 "
        "++policy.generation.vllm_kwargs.max_num_seqs=512 logger.wandb.name=mine",
        {
            "model.layers": 36,
            "model.seq_len": 4096,
            "global_batch_size": 512,
            "baseline.micro_batch_size": 2,
            "baseline.tp": 2,
            "baseline.zero_stage": 3,
            "baseline.recompute": "full",
            "workload.start": "job",
            "training.rollout": {
                "devices": 8,
                "prompt_tokens": 1024,
                "answer_tokens": 3072,
                "share": 0.7,
                "updates": 2,
                "tp": 4,
                "weights_leave": False,
                "optimizer_leaves": False,
                "behind": 2,
                "max_rows": 512,
                "pass_tokens": 8192,
                "weight_bits": 16,
                "kv_bits": 8,
                "graphs": True,
                "log_prob_rows": 2,
            },
            "training.beside": [{"role": "reference", "bits": 0}],
        },
        "=mine results/grpo",
    ),
    "openrlhf": (
        "deepspeed --num_nodes 2 --num_gpus 8 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen3-8B --max_len 8192 "
        "--micro_train_batch_size 2 --train_batch_size 64 --zero_stage 3 --gradient_checkpointing --load_checkpoint "
        "--save_path /data/mine --ckpt_path /data/mine --save_steps 20",
        {
            "model.hidden": 4096,
            "model.seq_len": 8192,
            "global_batch_size": 64,
            "baseline.micro_batch_size": 2,
            "baseline.zero_stage": 3,
            "baseline.recompute": "full",
        },
        "/data/mine --load_checkpoint --train.micro_batch_size",
    ),
    # examples/scripts/train_ppo_ray_hybrid_engine.sh, of 0.11 and of 0.8.
    "openrlhf by rollouts": (
        "python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 2 --actor.num_gpus_per_node 8 --vllm.num_engines 8 "
        "--vllm.tensor_parallel_size 2 --train.colocate_all --vllm.gpu_memory_utilization 0.5 --reward.remote_url r.py "
        "--actor.model_name_or_path Qwen/Qwen3-8B --train.batch_size 128 --rollout.batch_size 1024 --data.max_len 4096 "
        "--rollout.max_new_tokens 3072 --ds.zero_stage 3 --actor.gradient_checkpointing_enable --vllm.enable_sleep "
        "--train.dynamic_batch_enable --train.max_tokens_per_gpu 20480 --ckpt.save_steps 20 --ckpt.load_enable "
        "--ckpt.output_dir /data/mine --logger.wandb.key mine",
        {
            "model.seq_len": 4096,
            "global_batch_size": 128,
            "baseline.zero_stage": 3,
            "baseline.recompute": "full",
            # As many rows as a pass has room for, and the micro-batch counts for nothing.
            "workload.fixed.micro_batch_size": 4,
            "workload.start": "job",
            "workload.steps": 6,
            "training.rollout.prompt_tokens": 1024,
            "training.rollout.answer_tokens": 3072,
            "training.rollout.updates": 8,
            "training.rollout.tp": 2,
            "training.rollout.share": 0.5,
            "training.rollout.sleeps": True,
            "training.rollout.graphs": True,
            "training.rollout.update_tokens": 20480,
            "training.rollout.log_prob_tokens": 20480,
            "training.beside": [{"role": "reference"}, {"role": "value"}],
        },
        "/data/mine --ckpt.load_enable --logger.wandb.key mine --train.micro_batch_size",
    ),
    "openrlhf by rollouts, before 0.10": (
        'ray job submit --address=http://127.0.0.1:8265 --runtime-env-json=\'{"env_vars": {"NCCL_DEBUG": "WARN"}}\' '
        "--no-wait -- python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 2 --actor_num_gpus_per_node 8 "
        "--ref_num_nodes 1 --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --pretrain Qwen/Qwen3-8B "
        "--reward_pretrain Qwen/Qwen3-4B --micro_train_batch_size 2 --train_batch_size 128 "
        "--micro_rollout_batch_size 4 --rollout_batch_size 256 --n_samples_per_prompt 4 --max_epochs 2 "
        "--prompt_max_len 1024 --generate_max_len 2048 --zero_stage 3 --adam_offload --init_kl_coef 0 "
        "--advantage_estimator rloo --async_train --async_queue_size 2 "
        "--enforce_eager --gradient_checkpointing --save_path /data/mine --load_checkpoint",
        {
            "model.seq_len": 3072,
            "global_batch_size": 128,
            "baseline.micro_batch_size": 2,
            "training.offload": "optimizer",
            "training.rollout.answer_tokens": 2048,
            "training.rollout.updates": 16,
            "training.rollout.share": 0.95,
            "training.rollout.graphs": False,
            "training.rollout.sleeps": False,
            "training.rollout.log_prob_rows": 4,
            "training.rollout.devices": 8,
            "training.rollout.behind": 2,
            "training.beside": [{"role": "reward", "parameters": 4022458880}],
        },
        "/data/mine --load_checkpoint submit --address",
    ),
    "maxtext": (
        "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3.1-70b per_device_batch_size=2 "
        "max_target_length=4096 ici_fsdp_parallelism=8 dcn_fsdp_parallelism=4 dcn_data_parallelism=1 "
        "base_output_directory=gs://mine enable_checkpointing=True remat_policy=full",
        {
            "model.layers": 80,
            "model.seq_len": 4096,
            "global_batch_size": 64,
            "baseline.micro_batch_size": 2,
            "baseline.zero_stage": 3,
            "baseline.recompute": "full",
            "workload.start": "node",
        },
        "gs://mine enable_checkpointing=True",
    ),
    "litgpt": (
        f"litgpt pretrain Llama-3.1-8B --model_name Llama-3.1-8B --{LITGPT} --train.max_seq_length 2048 --devices 8 "
        "--resume auto",
        {
            "model.layers": 32,
            "model.seq_len": 2048,
            "global_batch_size": 64,
            "baseline.micro_batch_size": 4,
            "baseline.zero_stage": 3,
            "baseline.recompute": "none",
            "workload.start": "node",
            "workload.configs": {
                "base": {"train": {"micro_batch_size": 4, "global_batch_size": 64, "max_seq_length": 2048}},
                "set": {"out_dir": "{directory}/output", "train.max_steps": "{steps}", "resume": None},
            },
        },
        "",
    ),
    "torchtune": (
        "tune run --nproc_per_node 4 full_finetune_distributed --config conf/own_fsdp.yaml batch_size=2 \\",
        {
            "model.layers": 32,
            "model.seq_len": 4096,
            "global_batch_size": 64,
            "baseline.micro_batch_size": 2,
            "baseline.zero_stage": 3,
            "baseline.recompute": "full",
            "workload.configs": {
                "base": {"batch_size": 2},
                "set": {"output_dir": "{directory}/output", "max_steps_per_epoch": "{steps}"},
            },
        },
        "",
    ),
}
TUNE = """
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
dataset: {_component_: torchtune.datasets.alpaca_dataset}
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, output_dir: /data/mine}
batch_size: 8
gradient_accumulation_steps: 8
dtype: bf16
enable_activation_checkpointing: true
output_dir: /data/mine
"""

# The second inherits the first, and takes the place of its section `loss_fn`.
NEMO_RL = {
    "base.yaml": """
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  async_grpo: {enabled: true, max_trajectory_age_steps: 2}
loss_fn: {reference_policy_kl_penalty: 0, use_importance_sampling_correction: true}
checkpointing: {enabled: true, checkpoint_dir: results/grpo}
logger: {log_dir: logs, wandb: {name: base}}
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 2
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 512
  dtensor_cfg: {enabled: true, activation_checkpointing: true, tensor_parallel_size: 1}
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  generation:
    max_new_tokens: ${policy.max_total_sequence_length}
    colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 8}}
    vllm_cfg: {tensor_parallel_size: 4, gpu_memory_utilization: 0.6, kv_cache_dtype: fp8}
    vllm_kwargs: {}
cluster: {gpus_per_node: 8, num_nodes: 1}
""",
    "own.yaml": """
defaults: base.yaml
loss_fn: {_override_: true, reference_policy_kl_penalty: 0.01}
policy:
  max_total_sequence_length: 4096
  dtensor_cfg: {tensor_parallel_size: 2}
  generation: {max_new_tokens: 3072, vllm_cfg: {gpu_memory_utilization: 0.7}}
""",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "rl").mkdir(parents=True)
    for name, text in NEMO_RL.items():
        (tmp_path / "conf" / "rl" / name).write_text(text)
    (tmp_path / "conf" / "own_fsdp.yaml").write_text(TUNE)
    (tmp_path / "train.yaml").write_text("learning_rate: 1.0e-5\n")
    return tmp_path


def refusal(folder, name: str, text: str) -> str:
    (folder / name).write_text(text)
    done = run("import", name)
    assert (done.code, done.out) == (2, ""), done.err
    return done.err


def spaces(folder, spec: str) -> str:
    """What `spaces` says of a spec, which has the baseline among its plans."""
    (folder / "SPEC.yaml").write_text(spec)
    done = run("spaces", "SPEC.yaml")
    assert done.code == 0, (spec, done.err)
    assert not done.out.startswith("0 legal")
    assert "baseline" not in done.err, done.err
    return done.out


def at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[key]
    return document


@pytest.mark.parametrize("start", PLAIN)
def test_a_start_of_a_program_without_rows_is_a_plain_command(start, folder):
    (folder / "run.sh").write_text(f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nset -e\n{start}\n")
    done = run("import", "run.sh", "--cluster", "dgx-h100")
    assert done.code == 0, done.err
    spec = parse_yaml(done.out)
    assert {*PLAIN[start]} <= {*spec["workload"]["command"]}
    assert spec["workload"]["watch"] is True
    spec.pop("open_questions")
    spaces(
        folder,
        json.dumps(
            {**spec, "global_batch_size": spec["global_batch_size"] or (16 if "nodes" in spec["cluster"] else 8)}
        ),
    )


@pytest.mark.parametrize("program", READ)
def test_a_start_is_read_as_far_as_its_table_goes(program, folder):
    start, wanted, left_out = READ[program]
    (folder / "run.sh").write_text(f"#!/bin/bash\nexport NCCL_DEBUG=WARN\n{start}\n")
    done = run("import", "run.sh", "--cluster", "dgx-h100")
    assert done.code == 0, done.err
    spec = parse_yaml(done.out)
    for path, value in wanted.items():
        if path == "workload.configs":
            config = spec["workload"]["configs"]["train.yaml"]
            assert config["base"].items() >= value["base"].items()
            assert {**config["set"], **config["trial"]}.items() >= value["set"].items()
        else:
            assert at(spec, path) == value, path
    command = spec["workload"]["command"]
    alone = spec["workload"].get("trial_arguments", {})
    started = " ".join(map(str, laid_over(command, {**dict.fromkeys(alone), **dict(lines(alone))})))
    assert [word for word in left_out.split() if word in started] == []
    assert all(word and word == word.strip() for word in map(str, command))
    assert spec["workload"]["env"] == {"NCCL_DEBUG": "WARN"}
    spec.pop("open_questions", None)
    if spec["workload"].get("log", ...) is None:
        del spec["workload"]["log"]
    spaces(folder, json.dumps(spec))


MAXTEXT = READ["maxtext"][0].replace("dcn_fsdp_parallelism=4 dcn_data_parallelism=1", "dcn_data_parallelism=4")
NODES = "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"


@pytest.mark.parametrize(
    ("start", "group", "words"),
    [
        (
            READ["verl"][0] + " actor_rollout_ref.actor.fsdp_config.fsdp_size=4",
            4,
            "actor_rollout_ref.actor.fsdp_config.fsdp_size={zero_ranks}",
        ),
        (READ["verl"][0] + " actor_rollout_ref.actor.fsdp_config.fsdp_size=-1", 0, "fsdp_size={zero_ranks}"),
        (READ["verl"][0] + " actor_rollout_ref.actor.fsdp_config.fsdp_size=32", 0, "fsdp_size={zero_ranks}"),
        (MAXTEXT, 8, "dcn_data_parallelism=4"),
        (NODES + "srun " + READ["litgpt"][0] + " --num_nodes 2", 8, "'num_nodes': '{nodes}'"),
        (READ["torchtune"][0][:-1] + "data_parallel_replicate_dim=2", 2, "_replicate_dim': '{zero_groups}'"),
    ],
    ids=["verl", "verl-all", "verl-more", "maxtext", "litgpt", "torchtune"],
)
def test_groups_that_are_sharded_over_are_the_plan_s(start, group, words, folder):
    (folder / "run.sh").write_text(f"#!/bin/bash\n{start}\n")
    done = run("import", "run.sh", "--cluster", "dgx-h100")
    assert done.code == 0, done.err
    spec = parse_yaml(done.out)
    assert spec["baseline"].get("zero_group", 0) == group
    assert "zero_group" not in str(spec.get("open_questions"))
    written = str(spec["workload"])
    assert words in written
    told = "{zero_group" in written or "{zero_ranks" in written
    assert spec["workload"]["fixed"].get("zero_group", 0) == (0 if told else group)
    spec.pop("open_questions", None)
    if spec["workload"].get("log", ...) is None:
        del spec["workload"]["log"]
    spaces(folder, json.dumps(spec))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_group_of_a_node_whose_devices_nobody_says_is_one_node_s_or_asked(nodes, folder):
    start = READ["litgpt"][0].replace("--devices 8", f"--num_nodes {nodes}")
    (folder / "run.sh").write_text(f"#!/bin/bash\n{start}\n")
    spec = parse_yaml(run("import", "run.sh", "--cluster", "dgx-h100").out)
    [*questions] = [each for each in spec.pop("open_questions") if "zero_group" in each]
    if nodes == 1:
        assert (questions, "zero_group" in spec["workload"]["fixed"]) == ([], False)
    else:
        [question] = questions
        assert "its sharding strategy: ZeRO" in question
        assert question.endswith("how large is one, here, in workload.fixed and, beside 0, in space?")
        spec["baseline"]["zero_group"] = spec["workload"]["fixed"]["zero_group"] = 8
        spec["space"] = {"zero_group": [0, 8]}
    del spec["workload"]["log"]
    spaces(folder, json.dumps({**spec, "global_batch_size": 64}))


def test_more_context_ranks_than_kv_heads_run_where_the_program_repeats_them(folder):
    """https://github.com/volcengine/verl/issues/1226: 8 key/value heads over 16 ranks."""
    start = READ["verl"][0].replace("n_gpus_per_node=4", "n_gpus_per_node=8")
    (folder / "run.sh").write_text(f"{start} actor_rollout_ref.actor.ulysses_sequence_parallel_size=16\n")
    spec = parse_yaml(run("import", "run.sh", "--cluster", "dgx-h100").out)
    assert (spec["model"]["kv_heads"], spec["baseline"]["cp"], spec["baseline"]["context"]) == (8, 16, "ulysses")
    assert "open_questions" not in spec
    spaces(folder, json.dumps(spec))
    # Megatron-Core's attention does not.
    spec["workload"]["framework"] = "megatron-core-bfloat16"
    (folder / "SPEC.yaml").write_text(json.dumps(spec))
    assert "does not divide kv_heads(8)" in run("spaces", "SPEC.yaml").err


def test_devices_that_the_program_has_beat_those_that_start_it(folder):
    (folder / "run.sh").write_text(READ["verl"][0])
    assert "starts on 2 nodes with 4 devices each" in run("import", "run.sh").err


def test_open_devices_are_asked_and_no_number_stands_for_them(folder):
    (folder / "run.sh").write_text(
        "tune run --nproc_per_node $N full_finetune_distributed --config conf/own_fsdp.yaml\n"
    )
    done = run("import", "run.sh")
    assert "unknown number of devices" in done.err
    assert parse_yaml(done.out)["global_batch_size"] is None


def test_a_file_that_lies_elsewhere_in_the_tree_is_read_with_a_question(folder):
    (folder / "run.sh").write_text("tune run --nproc_per_node 4 full_finetune_distributed --config own_fsdp.yaml\n")
    done = run("import", "run.sh")
    assert "own_fsdp.yaml is not there, and conf/own_fsdp.yaml is read in its place" in done.err


def test_a_configuration_of_torchtune_s_own_is_to_be_written_out(folder):
    text = "tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_1/8B_lora\n"
    assert "`tune cp NAME train.yaml`, and start with --config train.yaml" in refusal(folder, "run.sh", text)


def test_adapters_of_litgpt_are_refused_with_a_step(folder):
    assert "trains adapters" in refusal(folder, "run.sh", "litgpt finetune_lora m --config train.yaml\n")


def test_dynamic_batches_of_verl_make_no_placeholder(folder):
    more = "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10000"
    (folder / "run.sh").write_text(f"{READ['verl'][0]} {more}\n")
    spec = parse_yaml(run("import", "run.sh", "--cluster", "dgx-h100").out)
    assert spec["workload"]["fixed"].items() >= {"micro_batch_size": 2, "grad_accum_steps": 16}.items()
    assert "{micro_batch_size}" not in str(spec["workload"]["command"])


def test_engines_of_verl_with_devices_of_their_own_are_no_part_of_the_training_s(folder):
    start = READ["verl"][0].replace("verl.trainer.main_ppo", "verl.experimental.one_step_off_policy.main_ppo")
    (folder / "run.sh").write_text(f"{start} rollout.nnodes=1 rollout.n_gpus_per_node=2\n")
    done = run("import", "run.sh", "--cluster", "dgx-h100")
    rollout = parse_yaml(done.out)["training"]["rollout"]
    assert (rollout["devices"], rollout["behind"]) == (2, 1)
    assert "1 x 2 devices generate, beside those of the training" in done.err


def test_a_file_that_inherits_itself_is_asked_about(folder):
    (folder / "conf" / "rl" / "base.yaml").write_text("defaults: own.yaml\n")
    (folder / "run.sh").write_text(f"{READ['nemo-rl'][0]}\n")
    done = run("import", "run.sh", "--cluster", "dgx-h100")
    assert "conf/rl/own.yaml is not there, and stays" in done.err


def test_a_script_of_nemo_rl_without_a_file_has_the_one_beside_it(folder):
    (folder / "examples" / "configs").mkdir(parents=True)
    (folder / "examples" / "configs" / "grpo_math_1B.yaml").write_text(NEMO_RL["base.yaml"])
    (folder / "run.sh").write_text("uv run python examples/run_grpo.py cluster.num_nodes=2\n")
    spec = parse_yaml(run("import", "run.sh", "--cluster", "dgx-h100").out)
    assert spec["model"]["seq_len"] == 512
    assert "beside" not in spec["training"]
    assert spec["workload"]["command"][:4] == ["uv", "run", "python", "examples/run_grpo.py"]


def test_words_behind_a_variable_are_followed(folder):
    words = "openrlhf.cli.train_sft --max_len 2048 \\\n  --zero_stage 3"
    text = f"read -r -d '' X <<EOF\n{words}\nEOF\ndeepspeed --module $X\n"
    (folder / "run.sh").write_text(text)
    spec = parse_yaml(run("import", "run.sh").out)
    assert (spec["model"]["seq_len"], spec["baseline"]["zero_stage"]) == (2048, 3)


def test_the_step_of_a_script_that_is_named_alone_works(folder):
    said = refusal(folder, "own.py", "for x in (1,):\n    pass\n")
    assert "meshtune import --command 'torchrun own.py" in said
    done = run("import", "--command", "torchrun --nproc_per_node 4 own.py --width 64")
    assert done.code == 0
    command = parse_yaml(done.out)["workload"]["command"]
    assert command == ["torchrun", "--nproc_per_node", "{devices_per_node}", "own.py", "--width", "64"]


def test_a_program_in_python_is_no_script_of_a_shell(folder):
    recipe = "import nemo_run as run\nfrom nemo.collections import llm\nfor x in (1,):\n    pass\n"
    assert "--to-yaml FILE.yaml" in refusal(folder, "recipe.py", recipe)
