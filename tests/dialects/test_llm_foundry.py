"""llm-foundry read from its start and its YAML file: what it says, what it leaves open, and what trials get."""

from __future__ import annotations

import pytest
import yaml
from config_lab import Trials, changed, launch, questions

from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.llm_foundry.reader import LOG, is_file, is_program, read_file_text, read_launch
from meshtune.runners.programs.dialects.omegaconf import overridden, resolved
from meshtune.runners.programs.log_patterns import Patterns

CONFIG = """\
variables:
  max_seq_len: 2048
  width: 4096
max_seq_len: ${variables.max_seq_len}
run_name:
model:
  name: mpt_causal_lm
  init_device: meta
  d_model: ${variables.width}
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  attn_config:
    attn_impl: flash
tokenizer: {name: EleutherAI/gpt-neox-20b, kwargs: {model_max_length: "${variables.max_seq_len}"}}
train_loader:
  name: text
  dataset: {local: ./my-copy-c4, max_seq_len: "${variables.max_seq_len}"}
optimizer: {name: decoupled_adamw, lr: 1e-4, eps: 1.0e-08}
scheduler: {name: cosine_with_warmup, t_warmup: 100ba}
max_duration: 63900ba
eval_interval: 5000ba
global_train_batch_size: 1024
device_train_microbatch_size: 8
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
  activation_cpu_offload: false
callbacks:
  speed_monitor: {window_size: 10}
  lr_monitor: {}
save_folder: s3://bucket/run
"""
NAME = "yamls/pretrain/mpt-7b.yaml"
LENGTH = {
    "max_duration": ("63900ba", "15ba"),
    "log_to_console": (..., True),
    "progress_bar": (..., False),
    "console_log_interval": (..., "1ba"),
    "callbacks.speed_monitor.window_size": (10, 1),
    "callbacks.memory_monitor": (..., {}),
    "save_folder": ("s3://bucket/run", ...),
}


def start(*words: str, config: str = CONFIG, **more) -> Imported:
    return read_launch(launch("train/train.py", NAME, *words, files={NAME: config}, **more))


def test_a_start_says_model_plan_and_batch():
    imported = start()
    assert imported.model == {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "ffn": 16384,
        "vocab": 50368,
        "norm": "layernorm",
        "position": "learned",
        "tied_head": True,
        "activation": "gelu",
        "seq_len": 2048,
    }
    expected = {"zero_stage": 3, "recompute": "full", "dp": 16, "micro_batch_size": 8, "grad_accum_steps": 8}
    assert imported.plan == {"tp": 1, "pp": 1, **expected}
    assert imported.global_batch_size == 1024
    assert imported.workload["dtype"] == "bfloat16"
    assert questions(imported) == []


def test_the_baseline_is_the_users_configuration_and_a_plan_changes_its_keys_alone():
    trials = Trials(start())
    assert changed(yaml.safe_load(CONFIG), trials.config("train.yaml")) == LENGTH
    # What OmegaConf reads as a float is written as the user wrote it.
    assert "lr: 1e-4\n" in trials.job().files["train.yaml"]
    other = next(plan for plan in trials.space if plan.zero_stage == 2 and plan.micro_batch_size == 4)
    assert changed(yaml.safe_load(CONFIG), trials.config("train.yaml", other)) == LENGTH | {
        "device_train_microbatch_size": (8, 4),
        "fsdp_config.sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP"),
        **({} if other.recompute == "full" else {"fsdp_config.activation_checkpointing": (True, False)}),
    }
    assert {plan.zero_stage for plan in trials.space} == {0, 2, 3}
    assert {(plan.tp, plan.pp, plan.cp, plan.ep) for plan in trials.space} == {(1, 1, 1, 1)}
    job = trials.job()
    assert job.command[-3:] == ("python", "train/train.py", "/jobs/x/train.yaml")
    assert (job.env["LOCAL_WORLD_SIZE"], job.processes) == ("8", 16)


def test_words_of_the_start_are_laid_over_the_file():
    imported = start(
        "variables.width=2048", "model.n_heads=16", "fsdp_config.activation_checkpointing=false", "run_name=a"
    )
    assert (imported.model["hidden"], imported.model["heads"], imported.plan["recompute"]) == (2048, 16, "none")
    own = imported.workload["configs"]["train.yaml"]["base"]
    assert own["model"]["d_model"] == "${variables.width}"
    assert own["run_name"] == "a"
    with pytest.raises(CannotRead, match="'--wide' is no key=value"):
        start("--wide")
    asked = questions(start("save_folder=\x01$OUT\x02"))
    assert len(asked) == 1
    assert asked[0].startswith("workload.command: line 3: what save_folder=$OUT stands for is not known here")


def test_replicas_without_fsdp_stay_replicas():
    imported = start("fsdp_config=null")
    assert (imported.plan["zero_stage"], imported.workload["fixed"]["zero_stage"]) == (0, 0)
    assert Trials(imported).config("train.yaml")["fsdp_config"] is None


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (
            ("device_train_microbatch_size=auto",),
            "baseline.micro_batch_size: line 3: device_train_microbatch_size is auto",
        ),
        (
            ("device_train_microbatch_size=24",),
            "baseline.micro_batch_size: line 3: device_train_microbatch_size(24) does not",
        ),
        (("precision=amp_fp8",), "workload.dtype: line 3: precision is amp_fp8"),
        (
            ("fsdp_config.sharding_strategy=HYBRID_SHARD",),
            "baseline.zero_stage: line 3: fsdp_config shards by HYBRID_SHARD",
        ),
        (
            ("fsdp_config.activation_cpu_offload=true",),
            "line 3: fsdp_config.activation_cpu_offload: what is kept lies on the",
        ),
        (("model.attn_config.alibi=true",), "model.position: line 3: model.attn_config.alibi"),
        (("model.norm_type=qk",), "model.norm: line 3: model.norm_type is qk"),
        (
            ("model.n_layers=${oc.env:LAYERS}",),
            "model.layers: line 3: model.n_layers is '${oc.env:LAYERS}', which is no whole",
        ),
        (
            ("model.expansion_ratio=2.33",),
            "model.ffn: line 3: model.expansion_ratio is 2.33, which gives no whole width",
        ),
        (("model.ffn_config.ffn_type=mine",), "model.activation: line 3: model.ffn_config.ffn_type is mine"),
        (
            ("tp_config.strategy=ffn", "tp_config.tensor_parallel_degree=2"),
            "line 3: tp_config cuts layers as its strategy says",
        ),
        (("model.my_gate=3",), "line 3: model.my_gate: no key that llm-foundry's MPT is known to have"),
        (("wide=3",), "line 3: wide: no key that llm-foundry is known to have"),
        (("model.name=my_lm",), "model.layers: line 3: model.name is my_lm"),
        (("model.peft_config.r=16",), "line 3: model.peft_config: few weights are trained"),
        (
            ("model.name=hf_causal_lm", "model.pretrained_model_name_or_path=a/b"),
            "model.layers: line 3: the model is a/b",
        ),
    ],
)
def test_what_is_not_understood_is_asked(words, part):
    asked = questions(start(*words))
    assert len(asked) == 1
    assert asked[0].startswith(part)


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (
            ("model.attn_config.rope=true", "model.norm_type=low_precision_rmsnorm"),
            {"position": "rope", "norm": "rmsnorm"},
        ),
        (("model.attn_config.attn_type=grouped_query_attention", "model.attn_config.kv_n_heads=8"), {"kv_heads": 8}),
        (("model.attn_config.attn_type=multiquery_attention",), {"kv_heads": 1}),
        (
            ("model.ffn_config.ffn_type=mptglu", "model.ffn_config.ffn_hidden_size=11008"),
            {"activation": "swiglu", "ffn": 11008},
        ),
        (("model.tie_word_embeddings=false",), {"tied_head": False}),
        (
            ("model.ffn_config={ffn_type: mb_dmoe, moe_num_experts: 8, moe_top_k: 2}", "model.expansion_ratio=1"),
            {"experts": 8, "top_k": 2, "ffn": 4096},
        ),
        (
            ("model.name=hf_causal_lm", "model.pretrained_model_name_or_path=meta-llama/Meta-Llama-3.1-8B"),
            {"layers": 32, "kv_heads": 8, "ffn": 14336, "seq_len": 2048},
        ),
    ],
)
def test_shapes_follow_from_the_keys(words, model):
    imported = start(*words)
    assert questions(imported) == []
    assert model.items() <= imported.model.items()


def test_one_file_alone_leaves_the_command_open():
    assert is_file(NAME, CONFIG)
    assert not is_file("a.yaml", "model: {name: x}\ntrain_loader: {}\n")
    imported = read_file_text(NAME, CONFIG)
    assert [question.path for question in imported.questions] == ["workload.command"]
    assert imported.plan["micro_batch_size"] == 8
    assert "dp" not in imported.plan
    trials = Trials(imported, workload__command=["composer", "train.py", "{directory}/train.yaml"])
    assert changed(yaml.safe_load(CONFIG), trials.config("train.yaml")) == LENGTH


def test_starts_are_recognised():
    assert is_program(launch("train/train.py", NAME, files={NAME: CONFIG}))
    assert is_program(launch("/opt/llm-foundry/scripts/train/train.py", "a.yaml"))
    assert not is_program(launch("train.py", NAME, files={NAME: "a: 1"}))
    assert not is_program(launch("train.py", "--config", NAME, files={NAME: CONFIG}))
    with pytest.raises(CannotRead, match="encoder and a decoder"):
        start("model.name=hf_t5")
    with pytest.raises(CannotRead, match=r"is started with a\.yaml, which cannot be read here"):
        read_launch(launch("train.py", "a.yaml"))


def test_references_lead_to_values_and_cost_no_more_than_their_length():
    config = {
        "a": {"b": 1, "c": "${.b}", "d": "${a.c}/x${a.b}", "e": "${oc.env:X}", "f": "${a}", "n": "${none}"},
        "g": "${g}",
        "none": None,
    }
    assert resolved(config)["a"] == {"b": 1, "c": 1, "d": "1/x1", "e": "${oc.env:X}", "f": "${a}", "n": None}
    assert resolved(config)["g"] == "${g}"
    many = {f"k{level}": f"${{k{level + 1}}}" * 150 for level in range(20)}
    assert sum(len(text) for text in resolved(many).values()) < 3_000_000
    assert overridden({"a": {"b": 1}}, ("+a.c=[1, x]", "a.b=null"), "here") == {"a": {"b": None, "c": [1, "x"]}}


def test_the_lines_of_its_log_are_read():
    """Written from composer/loggers/console_logger.py and callbacks/speed_monitor.py."""
    patterns = Patterns(LOG)
    lines = [
        "[batch=3/15]:",
        "\t Train time/batch: 2",
        f"\t Train loss/train/total: {10.93:.4f}",
        f"\t Train throughput/device/samples_per_sec: {7.9:.4f}",
        f"\t Train throughput/samples_per_sec: {63.25:.4f}",
        f"\t Train memory/peak_allocated_mem: {41.03:.4f}",
    ]
    found = [(name, patterns.find(name, line).value) for line in lines for name in LOG if patterns.find(name, line)]
    assert found == [("loss", 10.93), ("samples_per_s", 63.25), ("memory_gb", 41.03)]
