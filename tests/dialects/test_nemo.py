"""NeMo 2, NeMo 1 and Megatron-Bridge read from YAML: what it says, what it leaves open, and what trials get."""

from __future__ import annotations

import pytest
import yaml
from config_lab import Trials, changed, launch, questions

from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.nemo.layouts import BRIDGE, NEMO_2
from meshtune.runners.programs.dialects.nemo.reader import (
    is_file,
    is_log,
    is_program,
    read_file_text,
    read_launch,
    read_log,
)
from meshtune.runners.programs.dialects.omegaconf import overridden
from meshtune.runners.programs.log_patterns import Patterns

# Written in the manner of nemo_run/core/serialization/yaml.py: arguments of each call, and its _target_.
RECIPE = """\
_partial_: true
_target_: nemo.collections.llm.api.pretrain
data:
  _target_: nemo.collections.llm.gpt.data.mock.MockDataModule
  global_batch_size: 512
  micro_batch_size: 1
  seq_length: 8192
log:
  _target_: nemo.lightning.nemo_logger.NeMoLogger
  ckpt: {_target_: nemo.lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint, save_last: true}
  name: default
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config: {_target_: nemo.collections.llm.gpt.model.llama.Llama3Config70B, vocab_size: 128256}
optim:
  _target_: nemo.lightning.pytorch.optim.megatron.MegatronOptimizerModule
  config:
    _target_: megatron.core.optimizer.optimizer_config.OptimizerConfig
    lr: 0.0003
    use_distributed_optimizer: true
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  accelerator: gpu
  callbacks:
  - _target_: nemo.utils.exp_manager.TimingCallback
  devices: 8
  limit_val_batches: 32
  log_every_n_steps: 10
  max_steps: 1168251
  num_nodes: 2
  plugins:
    _target_: nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision
    params_dtype: {_call_: false, _target_: torch.bfloat16}
    precision: bf16-mixed
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    context_parallel_size: 1
    ddp:
      _target_: megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig
      data_parallel_sharding_strategy: optim_grads_params
      overlap_param_gather: true
    fsdp: null
    pipeline_model_parallel_size: 2
    sequence_parallel: true
    tensor_model_parallel_size: 4
    virtual_pipeline_model_parallel_size: null
  val_check_interval: 2000
"""
CONF = """\
defaults: [_self_, "optional tp_overlap@model.ub"]
name: megatron_gpt
trainer: {devices: 8, num_nodes: 2, precision: bf16, max_steps: 100000, limit_val_batches: 50, val_check_interval: 100}
exp_manager: {name: megatron_gpt, create_checkpoint_callback: true, resume_if_exists: true}
model:
  micro_batch_size: 4
  global_batch_size: 256
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: 5440
  num_attention_heads: 16
  num_query_groups: null
  normalization: rmsnorm
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  make_vocab_size_divisible_by: 128
  sequence_parallel: false
  activations_checkpoint_granularity: selective
  activations_checkpoint_method: null
  tokenizer: {library: megatron, type: GPT2BPETokenizer}
  optim: {name: distributed_fused_adam, lr: 2e-4}
"""
DUMP = """\
_target_: megatron.bridge.training.config.ConfigContainer
checkpoint: {_target_: megatron.bridge.training.config.CheckpointConfig, save: /ckpt, load: null}
dataset: {_target_: megatron.bridge.training.config.GPTDatasetConfig, seq_length: 4096}
ddp: {use_distributed_optimizer: false, overlap_grad_reduce: true, data_parallel_sharding_strategy: no_shard}
logger: {log_interval: 10}
mixed_precision: bf16_mixed
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  context_parallel_size: 2
  cp_comm_type: a2a
  expert_model_parallel_size: 1
  ffn_hidden_size: 14336
  fp8: null
  gated_linear_unit: true
  hidden_size: 4096
  kv_channels: 128
  normalization: RMSNorm
  num_attention_heads: 32
  num_layers: 32
  num_moe_experts: null
  num_query_groups: 8
  pipeline_model_parallel_size: 2
  position_embedding_type: rope
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
  seq_length: 4096
  sequence_parallel: false
  share_embeddings_and_output_weights: false
  should_pad_vocab: true
  tensor_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: 4
  vocab_size: 128256
optimizer: {lr: 0.0003, use_distributed_optimizer: false}
train: {global_batch_size: 64, micro_batch_size: 2, train_iters: 1000}
"""
TEXTS = {"RECIPE": RECIPE, "CONF": CONF, "DUMP": DUMP}
NEMO_LENGTH = {
    "trainer.max_steps": (1168251, 15),
    "trainer.val_check_interval": (2000, 15),
    "trainer.limit_val_batches": (32, 0),
    "trainer.log_every_n_steps": (10, 1),
    "trainer.enable_checkpointing": (..., False),
}


def paths(imported: Imported) -> list[str]:
    return [question.path for question in imported.questions]


def answered(imported: Imported, **space) -> Trials:
    return Trials(imported, workload__command=["run", "{directory}/nemo.yaml"], **({"space": space} if space else {}))


def with_words(text: str, *words: str) -> Imported:
    return read_file_text("a.yaml", yaml.safe_dump(overridden(yaml.safe_load(text), words, "here")))


def test_a_recipe_says_model_plan_and_batch():
    assert is_file("a.yaml", RECIPE)
    imported = read_file_text("a.yaml", RECIPE)
    assert imported.model == {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "ffn": 28672,
        "kv_heads": 8,
        "seq_len": 8192,
        "vocab": 128256,
        "vocab_multiple": 1,
        "norm": "rmsnorm",
        "position": "rope",
        "activation": "swiglu",
        "tied_head": False,
    }
    assert imported.plan == {
        "tp": 4,
        "pp": 2,
        "cp": 1,
        "ep": 1,
        "dp": 2,
        "sequence_parallel": True,
        "recompute": "none",
        "zero_stage": 1,
        "micro_batch_size": 1,
        "grad_accum_steps": 256,
    }
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (512, 2, 8)
    assert (imported.workload["dtype"], imported.workload["framework"]) == ("bfloat16", "megatron-core-bfloat16")
    assert paths(imported) == ["workload.command"]


def test_the_baseline_of_a_recipe_is_the_users_and_a_plan_changes_its_keys_alone():
    trials = answered(read_file_text("a.yaml", RECIPE), cp=[1, 2], recompute=["none", "full"], context=["ring"])
    own = yaml.safe_load(RECIPE)
    found = changed(own, trials.config("nemo.yaml"))
    # Recomputation is told to recipes that do not say it, by null as its default is.
    unsaid = {f"model.config.recompute_{part}": (..., None) for part in ("granularity", "method", "num_layers")}
    assert found == NEMO_LENGTH | unsaid | {"log.ckpt": (own["log"]["ckpt"], ...)}
    other = next(plan for plan in trials.space if (plan.tp, plan.pp, plan.cp, plan.recompute) == (1, 4, 2, "full"))
    after = changed(own, trials.config("nemo.yaml", other))
    plans = {key: value for key, value in after.items() if key not in found}
    assert {**plans, "data": None} == {
        "trainer.strategy.tensor_model_parallel_size": (4, 1),
        "trainer.strategy.pipeline_model_parallel_size": (2, 4),
        "trainer.strategy.context_parallel_size": (1, 2),
        "trainer.strategy.sequence_parallel": (True, False),
        **({"data.micro_batch_size": (1, other.micro_batch_size)} if other.micro_batch_size > 1 else {}),
        "data": None,
    }
    assert [after[key][1] for key in unsaid] == ["full", "uniform", 1]
    assert {plan.zero_stage for plan in trials.space if plan.dp * plan.cp > 1} == {1}
    assert {plan.context for plan in trials.space if plan.cp > 1} == {"ring"}


def test_a_configuration_of_nemo_1_is_read_with_its_references():
    imported = read_file_text("megatron_gpt_config.yaml", CONF)
    assert imported.model == {
        "layers": 24,
        "hidden": 2048,
        "heads": 16,
        "ffn": 5440,
        "seq_len": 2048,
        "vocab": 50257,
        "norm": "rmsnorm",
        "position": "rope",
        "activation": "swiglu",
        "tied_head": False,
    }
    expected = {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 8, "zero_stage": 1, "recompute": "selective"}
    assert expected.items() <= imported.plan.items()
    trials = answered(imported)
    assert changed(yaml.safe_load(CONF), trials.config("nemo.yaml")) == {
        "trainer.max_steps": (100000, 15),
        "trainer.val_check_interval": (100, 15),
        "trainer.limit_val_batches": (50, 0),
        "trainer.log_every_n_steps": (..., 1),
        "exp_manager.create_checkpoint_callback": (True, False),
        "exp_manager.resume_if_exists": (True, False),
        "model.activations_checkpoint_num_layers": (..., None),
    }
    assert "lr: 2e-4\n" in trials.job().files["nemo.yaml"]


def test_a_start_of_nemo_1_lays_its_words_over_the_file():
    path = "examples/nlp/language_modeling/conf/megatron_gpt_config.yaml"
    script = "examples/nlp/language_modeling/megatron_gpt_pretraining.py"
    words = (
        "trainer.num_nodes=4",
        "model.tensor_model_parallel_size=8",
        "+model.fp8=false",
        "model.sequence_parallel=True",
    )
    start = launch(script, *words, files={path: CONF})
    assert is_program(start)
    imported = read_launch(start)
    assert questions(imported) == []
    assert (imported.nodes, imported.plan["tp"], imported.plan["dp"]) == (4, 8, 4)
    job = Trials(imported, cluster={"preset": "dgx-h100", "nodes": 4}).job()
    assert job.command[-6:] == ("python", script, "--config-path", "/jobs/x", "--config-name", "nemo")
    named = launch(script, "--config-path=/c", "--config-name", "mine", *words, files={"/c/mine.yaml": CONF})
    assert read_launch(named).plan == imported.plan
    with pytest.raises(CannotRead, match=r"the start reads .*megatron_gpt_config\.yaml, which cannot be read here"):
        read_launch(launch(script, *words))


def test_a_configuration_of_megatron_bridge_is_read():
    imported = with_words(DUMP)
    assert imported.model["vocab"] == 128256
    assert imported.model["kv_heads"] == 8
    assert imported.plan == {
        "tp": 1,
        "pp": 2,
        "cp": 2,
        "ep": 1,
        "context": "ulysses",
        "vpp": 4,
        "schedule": "interleaved",
        "recompute": "full",
        "zero_stage": 0,
        "micro_batch_size": 2,
    }
    assert paths(imported) == ["workload.command"]
    trials = answered(imported)
    own = yaml.safe_load(DUMP)
    assert changed(own, trials.config("nemo.yaml")) == {
        "train.train_iters": (1000, 15),
        "logger.log_interval": (10, 1),
        "checkpoint.save": ("/ckpt", ...),
        "checkpoint.load": (None, ...),
    }
    other = next(plan for plan in trials.space if plan.tp == 2 and plan.zero_stage == 1 and plan.recompute == "none")
    after = changed(own, trials.config("nemo.yaml", other))
    assert after["optimizer.use_distributed_optimizer"] == after["ddp.use_distributed_optimizer"] == (False, True)
    assert after["model.recompute_granularity"] == ("full", None)
    assert after["model.recompute_method"] == ("uniform", None)
    assert {(plan.pp, plan.vpp, plan.schedule) for plan in trials.space} == {(2, 4, "interleaved")}


@pytest.mark.parametrize(
    ("text", "words", "vocab", "multiple"),
    [
        ("RECIPE", (), 128256, 1),
        ("CONF", (), 50257, 0),
        ("CONF", ("model.make_vocab_size_divisible_by=64",), 50257, 64),
        ("CONF", ("model.override_vocab_size=50304",), 50304, 1),
        ("DUMP", (), 128256, 0),
        ("DUMP", ("model.make_vocab_size_divisible_by=1280",), 128256, 1280),
        ("DUMP", ("model.should_pad_vocab=false",), 128256, 1),
    ],
)
def test_what_pads_the_vocabulary_is_read(text, words, vocab, multiple):
    imported = with_words(TEXTS[text], *words)
    assert (imported.model["vocab"], imported.model.get("vocab_multiple", 0)) == (vocab, multiple)
    told = any("nothing pads the vocabulary" in note for note in imported.notes)
    assert told == (multiple == 1)


def test_the_configuration_is_read_from_the_log_of_megatron_bridge():
    printed = yaml.safe_dump(yaml.safe_load(DUMP))
    text = f"rank 0 starts\nFinal configuration:\n{printed}> initializing torch distributed ...\n"
    assert is_log(text)
    assert not is_log("Final configuration: none")
    assert read_log(text).plan == with_words(DUMP).plan
    with pytest.raises(CannotRead, match="without its configuration"):
        read_log("")


@pytest.mark.parametrize(
    ("text", "words", "part"),
    [
        (
            "RECIPE",
            ("trainer.strategy.fsdp=megatron", "trainer.strategy.ddp=null"),
            "baseline.zero_stage: a.yaml: FSDP is on",
        ),
        ("RECIPE", ("trainer.plugins.fp8=hybrid",), "workload.dtype: a.yaml: products run in 8 bits or fewer (fp8)"),
        ("RECIPE", ("trainer.plugins=null",), "workload.dtype: a.yaml: the precision is not said"),
        ("RECIPE", ("trainer.callbacks=null",), "a.yaml: trainer.callbacks has no TimingCallback"),
        ("RECIPE", ("model.config.vocab_size=null",), "model.vocab: a.yaml: the vocabulary is the tokenizer's"),
        (
            "RECIPE",
            ("trainer.strategy.num_distributed_optimizer_instances=2",),
            "baseline.zero_stage: a.yaml: num_distributed",
        ),
        (
            "RECIPE",
            ("model.config.recompute_granularity=some",),
            "baseline.recompute: a.yaml: model.config.recompute_granul",
        ),
        (
            "RECIPE",
            (
                "model.config.recompute_granularity=full",
                "model.config.recompute_method=block",
                "model.config.recompute_num_layers=3",
            ),
            "baseline.recompute_interval: a.yaml: model.config.recompute_num_layers is 3",
        ),
        (
            "RECIPE",
            ("trainer.strategy.num_layers_in_last_pipeline_stage=3",),
            "a.yaml: trainer.strategy.num_layers_in_last",
        ),
        ("RECIPE", ("peft.dim=8",), "a.yaml: peft: few weights are trained"),
        (
            "RECIPE",
            ("data.micro_batch_size=null",),
            "baseline.micro_batch_size: a.yaml: data.micro_batch_size is not said",
        ),
        (
            "RECIPE",
            ("trainer.strategy.tensor_model_parallel_size=auto",),
            "baseline.tp: a.yaml: trainer.strategy.tensor_mod",
        ),
        ("DUMP", ("model.multi_latent_attention=true",), "a.yaml: model.multi_latent_attention is set"),
        (
            "DUMP",
            ("mixed_precision=bf16_with_fp8_current_scaling_mixed",),
            "workload.dtype: a.yaml: products run in 8 bits",
        ),
        ("DUMP", ("model.cp_comm_type=[a2a, p2p]",), "baseline.context: a.yaml: cp_comm_type is"),
        ("DUMP", ("train.rampup_batch_size=[8, 8, 100]",), "a.yaml: rampup_batch_size: the batch grows"),
        ("CONF", ("model.optim.name=null",), "baseline.zero_stage: a.yaml: model.optim.name is not said"),
        ("CONF", ("model.position_embedding_type=alibi",), "model.position: a.yaml: position_embedding_type is alibi"),
        ("CONF", ("model.my_layer=1",), "a.yaml: model.my_layer: no key that NeMo 1 is known to have"),
        (
            "DUMP",
            ("optimizer.optimizer_cpu_offload=true",),
            "a.yaml: optimizer.optimizer_cpu_offload: an optimizer on the",
        ),
        ("CONF", ("defaults=[base, _self_]",), "a.yaml: defaults names other files"),
    ],
)
def test_what_is_not_understood_is_asked(text, words, part):
    imported = with_words(TEXTS[text], *words)
    asked = [question for question in questions(imported) if not question.startswith("workload.command")]
    assert [question[: len(part)] for question in asked if question.startswith(part)] == [part]
    assert len(asked) == 1
    # No value stands where an answer is asked.
    section, _, key = part.partition(":")[0].partition(".")
    parts = {"model": imported.model, "baseline": imported.plan, "workload": imported.workload}
    assert key not in parts.get(section, {})


def test_embedding_and_loss_count_as_layers_of_the_pipeline():
    counted = [f"trainer.strategy.account_for_{part}_in_pipeline_split=true" for part in ("embedding", "loss")]
    ends = {"first_stage_less_layers": 1, "last_stage_less_layers": 1}
    four = with_words(RECIPE, *counted, "trainer.strategy.pipeline_model_parallel_size=4")
    assert ends.items() <= four.plan.items()
    assert ends.items() <= four.workload["fixed"].items()
    two = with_words(RECIPE, *counted)
    assert not ends.keys() & two.plan.keys()
    assert two.workload["fixed"]["pp"] == 2


def test_a_class_that_is_not_known_leaves_its_shapes_open():
    imported = with_words(RECIPE, "model.config._target_=nemo.collections.llm.gpt.model.nemotron.Nemotron4Config340B")
    assert set(paths(imported)) == {
        *("model.layers", "model.kv_heads", "model.norm", "model.position", "model.activation", "model.tied_head"),
        "workload.command",
    }
    assert imported.model == {"seq_len": 8192, "vocab": 128256, "vocab_multiple": 1}


def test_a_model_that_is_restored_has_no_shapes_in_the_configuration():
    unsaid = ("normalization", "activation", "position_embedding_type", "share_embeddings_and_output_weights")
    words = [f"model.{name}=null" for name in ("num_layers", *unsaid)]
    imported = with_words(CONF, *words, "model.restore_from_path=/m.nemo")
    asked = {"layers", "kv_heads", "norm", "position", "activation", "tied_head"}
    assert {f"model.{name}" for name in asked} <= set(paths(imported))
    assert not asked & imported.model.keys()


@pytest.mark.parametrize(
    ("text", "words", "part"),
    [
        ("CONF", ("name=megatron_retro",), "NeMo 1 with a model of the kind retro"),
        ("RECIPE", ("model._target_=nemo.collections.llm.t5.model.T5Model",), "NeMo 2 with a model of the kind t5"),
        ("RECIPE", ("trainer.strategy._target_=nemo.lightning.FSDP2Strategy",), "NeMo 2 with FSDP2Strategy"),
        ("CONF", ("model.hyena.kind=se",), "NeMo 1 with a model of the kind hyena"),
        ("CONF", ("model.encoder.num_layers=12",), "NeMo 1 with a model of the kind t5"),
        ("CONF", ('defaults=[{".@model.encoder": base}]',), "NeMo 1 with a model of the kind t5"),
        ("DUMP", ("_target_=null", "model._target_=null"), "an override of a Megatron-Bridge recipe, .*config.to_yaml"),
        ("RECIPE", ("data.global_batch_size=511", "data.micro_batch_size=2"), "no multiple of micro_batch_size"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text, words, part):
    with pytest.raises(CannotRead, match=part):
        with_words(TEXTS[text], *words)


def test_starts_that_name_a_file_are_read_and_recipes_in_python_are_refused():
    words = ("--yaml", "a.yaml", "data.micro_batch_size=2", "-v")
    start = launch("task.py", *words, files={"a.yaml": RECIPE})
    assert is_program(start)
    imported = read_launch(start)
    assert imported.plan["micro_batch_size"] == 2
    assert imported.workload["command"] == ["python", "task.py", "--yaml", "{directory}/nemo.yaml", "-v"]
    recipe = launch("scripts/training/run_recipe.py", "--recipe", "llama3_8b_pretrain_config", "-tp", "2")
    assert is_program(recipe)
    with pytest.raises(CannotRead, match=r"starts a recipe in Python, which is not read; print it as YAML"):
        read_launch(recipe)
    assert not is_program(launch("train.py", "--config-file", "a.yaml", files={"a.yaml": "a: 1"}))


def test_the_lines_of_their_logs_are_read():
    """Written from nemo/lightning/pytorch/callbacks/progress_printer.py, tqdm's bar and Megatron's training log."""
    nemo, bridge = Patterns(NEMO_2.log), Patterns(BRIDGE.log)
    printed = "iteration 3/14 | lr: 6e-07 | global_step: 3 | reduced_train_loss: 11.03 | train_step_timing in s: 2.351"
    bar = "20%|##| 3/14 [00:09<00:31, reduced_train_loss=11.03, global_step=3.000, train_step_timing in s=2.351]"
    for line in (printed, bar):
        assert [nemo.find(name, line).value for name in ("step", "step_time_s", "loss")] == [3, 2.351, 11.03]
    line = (
        f" [2026-01-01 00:00:00] iteration {3:8d}/{15:8d} | consumed samples: {192:12d} |"
        f" elapsed time per iteration (ms): {1234.5:.1f} | global batch size: {64:5d} | lm loss: {11.03:.6E} |"
    )
    assert [bridge.find(name, line).value for name in ("step", "step_time_ms", "loss")] == [3, 1234.5, 11.03]
