"""What `meshtune tune` tries unasked beside the layout: knobs of the program's catalogs that change no numbers."""

from __future__ import annotations

import json
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshtune.runners.devices.facts import Accelerator, Vendor
from meshtune.runners.programs.dialects.sources import read_command
from meshtune.search_spaces.conditions import Domain, parse_condition
from meshtune.search_spaces.knob import Numerics
from meshtune.search_spaces.presets import knob_catalogs, opening
from meshtune.tuner.specs import knobs
from meshtune.tuner.specs.knobs import read_catalogs, read_knobs
from meshtune.tuner.specs.launch_draft import Devices, draft_launch
from meshtune.tuner.specs.read import read_spec

GIB = 2**30
CPU = Devices(accelerators=(), memory_bytes=16 * GIB)
H100 = Accelerator(vendor=Vendor.NVIDIA, index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
GPU = Devices(accelerators=(H100,), memory_bytes=64 * GIB)
TRL = (
    "trl sft --model_name_or_path model --dataset_name data --use_peft --max_length 64 --num_processes 1 --bf16 true "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --gradient_checkpointing false"
)
TRAINER = (
    "torchrun --nproc_per_node 1 train.py --config_name model --block_size 64 --bf16 --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4"
)
PARSED = "from transformers import HfArgumentParser, TrainingArguments\n"
# Of the Trainer's, what a CPU has.
OPENED = {"transformers_optim", "transformers_dataloader_num_workers", "transformers_ddp_bucket_cap_mb"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's, with a model; nothing but what every environment has is installed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    installed(monkeypatch)
    return tmp_path


def installed(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    found = {name: ModuleSpec(name, None) for name in modules}
    monkeypatch.setattr(knobs, "find_spec", found.get)


CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 192, "vocab_size": 256, "max_position_embeddings": 256,
}  # fmt: skip


def drafted(line: str, devices: Devices = CPU, **answers: Any) -> dict[str, Any]:
    """The document that a launch line amounts to."""
    imported = read_command(line, given={})
    draft = draft_launch(imported, name="x", here=Path.cwd(), devices=devices, answers=answers)
    return dict(draft.document)


def opened(document: dict[str, Any]) -> dict[str, Any]:
    return {knob.name: knob for knob in read_knobs(document)}


def test_values_that_are_opened_unasked_are_among_those_of_their_knobs_and_change_no_numbers():
    """But for AdamW in one kernel or several, which stand among optimizers that compute something else."""
    every = {catalog: {knob.name: knob for knob in own} for catalog, own in read_catalogs().items()}
    exceptions = {"transformers_optim", "axolotl_optimizer"}
    seen = 0
    for catalog, own in every.items():
        ready, needs, divides, least = opening(catalog)
        assert needs.keys() | divides.keys() | least.keys() <= ready.keys(), catalog
        assert set(least.values()) <= {"row"}, catalog
        words = {word for each in divides.values() for word in each.split()}
        assert words <= {"devices", "devices_per_node", "heads"}, catalog
        for key, values in ready.items():
            knob = own[f"{catalog}_{key}"]
            assert all(knob.position(value) is not None for value in values), knob.name
            assert len(values) > 1, knob.name
            assert knob.numerics is Numerics.SAME or knob.name in exceptions, knob.name
            # Told by words with a place for each value, or a switch.
            assert knob.config or "{value}" in str(knob.argument) or knob.omit is False, knob.name
            # Knobs that decide whether it means anything stay as the launch has them, and no field of a plan is beside.
            others = {
                name: each for names in every.values() for each in names.values() if (name := each.name) in knob.when
            }
            assert not {other.removeprefix(f"{catalog}_") for other in others} & ready.keys(), knob.name
            if others:
                parse_condition(knob.when, {name: Domain(each.values) for name, each in others.items()})
            seen += 1
    assert seen > 10


SAID = [
    "transformers",
    "trl_peft",
    "accelerate_fsdp",
    "deepspeed",
    "axolotl",
    "ms_swift",
    "verl",
    "verl_fsdp",
    "verl_megatron",
    "verl_async",
    "nemo_rl",
    "nemo_rl_megatron",
    "openrlhf",
    "openrlhf_flat",
    "trl_grpo",
]


@pytest.mark.parametrize("catalog", SAID)
def test_each_knob_says_where_it_is_from_for_which_releases_and_what_may_go_wrong(catalog):
    for knob in read_catalogs()[catalog]:
        assert all((knob.meaning, knob.source, knob.versions, knob.risk)), knob.name


def test_arguments_of_the_catalogs_are_those_of_the_installed_releases():
    dataclasses = pytest.importorskip("dataclasses")
    trl = pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    configs = {
        "transformers": [transformers.TrainingArguments],
        "trl_peft": [trl.DPOConfig, trl.SFTConfig, trl.ModelConfig],
        "trl_grpo": [trl.ModelConfig, trl.GRPOConfig],
    }
    for catalog, classes in configs.items():
        fields = {field.name: field for each in classes for field in dataclasses.fields(each)}
        for knob in read_catalogs()[catalog]:
            if knob.argument is None:
                continue
            field = fields[knob.argument.split()[0].removeprefix("--")]
            # The program's own default, where it says one.
            if field.default is not None and knob.omit is not None:
                assert str(getattr(field.default, "value", field.default)) == str(knob.omit), knob.name


def test_keys_of_deepspeeds_catalog_are_those_of_the_installed_release():
    zero = pytest.importorskip("deepspeed.runtime.zero.config")
    known = {field.alias or name for name, field in zero.DeepSpeedZeroConfig.model_fields.items()}
    for knob in read_catalogs()["deepspeed"]:
        section, _, key = str(knob.config).partition(".")
        assert section != "zero_optimization" or key.partition(".")[0] in known, knob.name


def test_a_launch_of_trl_opens_what_a_cpu_has(folder):
    document = drafted(TRL)
    assert opened(document).keys() == OPENED
    assert all(knob.numerics is Numerics.SAME for knob in opened(document).values())
    assert opened(document)["transformers_dataloader_num_workers"].default == 0
    spec, space = read_spec(document, None)
    assert space.plans > len(space) > 1
    assert spec.baseline is not None


GRPO = TRL.replace("sft", "grpo").replace("--max_length", "--max_completion_length").replace("--use_peft ", "")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", set()),
        ("--use_vllm", {"gpu_memory_utilization", "tensor_parallel_size", "enable_sleep_mode"}),
        ("--use_vllm true --vllm_mode server", set()),
    ],
)
def test_knobs_of_an_engine_are_opened_where_it_shares_the_devices(words, wanted):
    line = GRPO.replace("--num_processes 1", "--num_processes 4") + f" {words}"
    found = opened(drafted(line, cluster={"preset": "dgx-h100", "devices_per_node": 4}))
    assert {name for name in found if "vllm" in name} == {f"trl_grpo_vllm_{name}" for name in wanted}
    if wanted:
        # Of four devices, and by the program's default; what an engine does is told by the knob alone.
        assert found["trl_grpo_vllm_tensor_parallel_size"].values == (1, 2, 4)
        assert found["trl_grpo_vllm_gpu_memory_utilization"].default == 0.3


OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.num_gpus_per_node 4 --vllm.num_engines 4 --train.batch_size 64 "
    "--actor.model_name_or_path Qwen/Qwen3-8B --reward.remote_url reward.py"
)


def test_a_switch_that_the_launch_has_is_told_by_its_knob_and_engines_follow_their_size():
    document = drafted(f"{OPENRLHF} --train.colocate_all --vllm.enable_sleep")
    found, command = opened(document), document["workload"]["command"]
    sleep, engine = found["openrlhf_vllm_enable_sleep"], found["openrlhf_engine_tp"]
    assert (sleep.default, sleep.arguments(True, 4), sleep.arguments(False, 4)) == (True, ["--vllm.enable_sleep"], [])
    assert engine.values == (1, 2, 4)
    assert engine.arguments(2, 4) == ["--vllm.tensor_parallel_size", "2", "--vllm.num_engines", "2"]
    assert not {"--vllm.enable_sleep", "--vllm.num_engines", "--vllm.tensor_parallel_size"} & set(command)
    # Of engines on devices of their own neither is opened, and the words stay.
    document = drafted(OPENRLHF)
    assert not {"openrlhf_vllm_enable_sleep", "openrlhf_engine_tp"} & opened(document).keys()
    assert "--vllm.num_engines" in document["workload"]["command"]


def test_what_needs_cuda_and_a_module_is_opened_where_both_are_there(monkeypatch):
    fused = {"transformers_use_liger_kernel", "trl_peft_attn_implementation"}
    installed(monkeypatch, "liger_kernel", "flash_attn")
    assert not opened(drafted(TRL)).keys() & fused
    assert opened(drafted(TRL, GPU)).keys() >= fused
    # The devices of the answer count, not those of the machine where one types it.
    assert opened(drafted(TRL, cluster={"preset": "dgx-h100", "devices_per_node": 1})).keys() >= fused
    installed(monkeypatch, "flash_attn")
    assert opened(drafted(TRL, GPU)).keys() & fused == {"trl_peft_attn_implementation"}


@pytest.mark.parametrize("how", ["word", "file"])
def test_what_the_launch_says_is_the_default_and_is_told_by_the_knob_alone(folder, how):
    line = f"{TRL} --optim adamw_torch --dataloader_num_workers 6 --learning_rate 1e-4"
    if how == "file":
        (folder / "sft.yaml").write_text("optim: adamw_torch\ndataloader_num_workers: 6\n")
        line = f"{TRL} --config sft.yaml --learning_rate 1e-4"
    document = drafted(line)
    workers, optim = (opened(document)[f"transformers_{name}"] for name in ("dataloader_num_workers", "optim"))
    assert (workers.default, set(workers.values)) == (6, {0, 2, 4, 6})
    assert optim.default == "adamw_torch"
    # Also where it is the value that else is told by no word.
    assert optim.arguments("adamw_torch_fused") == ["--optim", "adamw_torch_fused"]
    assert workers.arguments(0) == ["--dataloader_num_workers", "0"]
    for gone in ("--optim", "--dataloader_num_workers"):
        assert gone not in document["workload"]["command"]
    assert "--learning_rate 1e-4" in document["workload"]["command"]
    read_spec(document, None)


@pytest.mark.parametrize("optim", ["adafactor", "paged_adamw_8bit", "someone_elses"])
def test_a_value_beside_which_others_would_train_otherwise_stays(optim):
    document = drafted(f"{TRL} --optim {optim}")
    assert opened(document).keys() == OPENED - {"transformers_optim"}
    assert f"--optim {optim}" in document["workload"]["command"]


def test_a_script_that_parses_all_arguments_of_the_trainer_gets_its_knobs_and_another_none(folder):
    script = folder / "train.py"
    script.write_text(PARSED)
    assert opened(drafted(TRAINER)).keys() == OPENED
    script.write_text("import argparse\nfrom transformers import Trainer, TrainingArguments\n")
    assert opened(drafted(TRAINER)) == {}


def test_a_file_of_deepspeed_opens_its_buckets_but_for_what_is_filled_in_by_the_trainer(folder):
    (folder / "train.py").write_text(PARSED)
    zero = {"stage": 2, "reduce_bucket_size": 300000000, "overlap_comm": True, "stage3_prefetch_bucket_size": "auto"}
    file = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}, "zero_optimization": zero}
    (folder / "ds.json").write_text(json.dumps(file))
    found = opened(drafted(f"{TRAINER} --deepspeed ds.json", GPU))
    assert found["deepspeed_reduce_bucket_size"].default == 300000000
    assert found["deepspeed_overlap_comm"].default is True
    assert "deepspeed_prefetch_bucket_size" not in found
    assert found.keys() >= OPENED


def test_a_file_of_axolotl_opens_keys_of_its_copy(folder):
    file = {
        "base_model": "model", "sequence_len": 64, "micro_batch_size": 2, "gradient_accumulation_steps": 4,
        "datasets": [{"path": "data"}], "optimizer": "adamw_torch", "dataloader_num_workers": 2,
    }  # fmt: skip
    (folder / "lora.yaml").write_text(yaml.safe_dump(file))
    document = drafted("axolotl train lora.yaml")
    found = opened(document)
    assert found.keys() == {"axolotl_optimizer", "axolotl_dataloader_num_workers", "axolotl_ddp_bucket_cap_mb"}
    assert found["axolotl_optimizer"].default == "adamw_torch"
    assert found["axolotl_dataloader_num_workers"].default == 2
    read_spec(document, None)


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=1024 "
    "data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_batch_size=256 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.n=4 "
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.62 trainer.nnodes=2 trainer.n_gpus_per_node=4"
)
NODES_OF_4 = {"preset": "dgx-h100", "nodes": 2, "devices_per_node": 4}


def test_a_launch_of_verl_opens_what_divides_devices_and_memory():
    """Devices of an engine divide those of a node; what the launch has counts, 0.62 among the shares."""
    document = drafted(VERL, cluster=NODES_OF_4)
    found = opened(document)
    assert found["verl_tensor_model_parallel_size"].values == (1, 2, 4)
    assert found["verl_tensor_model_parallel_size"].default == 2
    assert (found["verl_gpu_memory_utilization"].default, found["verl_gpu_memory_utilization"].sets) == (
        0.62,
        "rollout.share",
    )
    assert found["verl_fsdp_param_offload"].arguments(True) == [
        "actor_rollout_ref.actor.fsdp_config.param_offload=true"
    ]
    command = document["workload"]["command"]
    assert not any("gpu_memory_utilization" in str(word) for word in command)
    assert {"{recompute}"} == {key for word in command if isinstance(word, dict) for key in word}
    # Of numbers that change, none is.
    assert not found.keys() & {"verl_n", "verl_use_dynamic_bsz", "verl_rollout_quantization"}
    spec, space = read_spec(document, None)
    assert space.plans > len(space) > 1
    assert spec.baseline is not None
    assert spec.training.rollout is not None
    assert (spec.training.rollout.share, spec.training.rollout.updates) == (0.62, 4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_condition_on_what_stays_is_decided_by_the_launch(dynamic):
    words = " actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20000"
    document = drafted(VERL + words * dynamic, cluster=NODES_OF_4)
    found = opened(document)
    by_tokens = {"verl_ppo_max_token_len_per_gpu", "verl_log_prob_max_token_len_per_gpu"}
    assert found.keys() & {*by_tokens, "verl_log_prob_micro_batch_size_per_gpu"} == (
        by_tokens if dynamic else {"verl_log_prob_micro_batch_size_per_gpu"}
    )
    if dynamic:
        assert found["verl_ppo_max_token_len_per_gpu"].default == 20000
        assert min(found["verl_ppo_max_token_len_per_gpu"].values) == 8192
        # None that holds no longest row.
        words = words.replace("20000", "40000") + " data.max_response_length=15000"
        longer = opened(drafted(VERL.replace("data.max_response_length=3072 ", "") + words, cluster=NODES_OF_4))
        assert sorted(longer["verl_ppo_max_token_len_per_gpu"].values) == [16384, 24576, 32768, 40000, 65536]
        assert longer["verl_log_prob_max_token_len_per_gpu"].values == ("follows", 32768, 65536)
    assert "verl_use_dynamic_bsz" not in found
    read_spec(document, None)


def test_a_key_that_hydra_adds_is_read_and_told_with_its_marks(folder):
    file = {
        "grpo": {"num_prompts_per_step": 32, "num_generations_per_prompt": 8},
        "policy": {
            "model_name": "Qwen/Qwen3-8B", "train_global_batch_size": 256, "train_micro_batch_size": 1,
            "max_total_sequence_length": 4096, "logprob_batch_size": 2,
            "generation": {"vllm_cfg": {"gpu_memory_utilization": 0.55}},
        },
        "cluster": {"num_nodes": 1, "gpus_per_node": 4},
    }  # fmt: skip
    (folder / "own.yaml").write_text(yaml.safe_dump(file))
    line = "uv run examples/run_grpo.py --config own.yaml ++policy.generation.vllm_kwargs.max_num_seqs=300"
    document = drafted(line, cluster={"preset": "dgx-h100", "devices_per_node": 4})
    found = opened(document)
    assert found["nemo_rl_max_num_seqs"].default == 300
    assert found["nemo_rl_max_num_seqs"].arguments(512) == ["++policy.generation.vllm_kwargs.max_num_seqs=512"]
    assert not any("max_num_seqs" in str(word) for word in document["workload"]["command"])
    # From the file, which stays as it is.
    assert found["nemo_rl_gpu_memory_utilization"].default == 0.55
    assert found["nemo_rl_tensor_parallel_size"].values == (1, 2, 4)
    read_spec(document, None)


def test_another_cluster_than_this_machine_s_has_nothing_of_it():
    document = drafted(VERL, cluster={"preset": "dgx-h100", "nodes": 2, "devices_per_node": 4})
    assert "device" not in document["cluster"]


def test_ms_swift_has_a_default_of_its_own_for_what_loads_data():
    line = "swift sft --model model --dataset data --torch_dtype bfloat16 --max_length 64 --tuner_type lora"
    found = opened(drafted(line))
    assert found["transformers_dataloader_num_workers"].default == 1
    assert found["transformers_dataloader_num_workers"].arguments(0) == ["--dataloader_num_workers", "0"]


def test_catalogs_that_programs_name_are_there():
    tables = (Path(knobs.__file__).parents[2] / "runners" / "programs").glob("*/table.toml")
    named: set[str] = set()
    for path in tables:
        document = tomllib.loads(path.read_text())
        parts = [document, *document.get("variants", {}).values()]
        named |= {name for part in parts for name in part.get("program", {}).get("catalogs", "").split()}
    assert {"transformers", "trl_peft", "deepspeed", "axolotl", "ms_swift"} <= named <= knob_catalogs().keys()
