"""Megatron-Bridge's saved configuration becomes a spec of a command, which is asked for."""

from __future__ import annotations

import pytest

from meshtune.runners.dialects.base import CannotRead
from meshtune.runners.dialects.megatron.reader import is_file, read_file_text
from meshtune.runners.workloads.command import CommandWorkload

CONFIG = """_target_: megatron.bridge.training.config.ConfigContainer
ddp:
  _target_: megatron.bridge.training.config.DistributedDataParallelConfig
  use_distributed_optimizer: true
  use_megatron_fsdp: false
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  bf16: true
  fp16: false
  context_parallel_size: 2
  cp_comm_type: null
  expert_model_parallel_size: 1
  ffn_hidden_size: 2816
  gated_linear_unit: true
  hidden_size: 1024
  normalization: RMSNorm
  num_attention_heads: 16
  num_layers: 24
  num_moe_experts: null
  num_query_groups: 4
  pipeline_model_parallel_size: 2
  position_embedding_type: rope
  recompute_granularity: selective
  seq_length: 4096
  sequence_parallel: true
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 3
  vocab_size: 51200
train:
  global_batch_size: 64
  micro_batch_size: 1
"""


@pytest.mark.parametrize(("padded", "multiple"), [("true", 1280), ("false", 0)])
def test_the_vocabulary_is_padded_where_the_configuration_asks_for_it(padded, multiple):
    text = CONFIG.replace(
        "  vocab_size: 51200",
        f"  vocab_size: 51200\n  should_pad_vocab: {padded}\n  make_vocab_size_divisible_by: 1280",
    )
    assert read_file_text("run_config.yaml", text).model.get("vocab_multiple", 0) == multiple


def test_a_saved_configuration_is_read_and_the_start_is_asked():
    assert is_file("run_config.yaml", CONFIG)
    imported = read_file_text("run_config.yaml", CONFIG)
    assert imported.model == {
        "layers": 24,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 4,
        "ffn": 2816,
        "vocab": 51200,
        "seq_len": 4096,
        "activation": "swiglu",
        "norm": "rmsnorm",
        "position": "rope",
        "tied_head": False,
    }
    assert imported.plan == {
        "tp": 2,
        "pp": 2,
        "cp": 2,
        "ep": 1,
        "micro_batch_size": 1,
        "sequence_parallel": True,
        "vpp": 3,
        "schedule": "interleaved",
        "zero_stage": 1,
        "recompute": "selective",
        "context": "ring",
    }
    assert imported.global_batch_size == 64
    assert [question.path for question in imported.questions] == ["workload.command", "cluster.nodes"]
    options = {name: value for name, value in imported.workload.items() if name != "kind"}
    overrides = "run.py model.tensor_model_parallel_size={tp} model.pipeline_model_parallel_size={pp}"
    assert CommandWorkload({**options, "command": overrides}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("bf16: true", "bf16: null", "workload.dtype"),
        ("use_distributed_optimizer: true", "x: 1", "baseline.zero_stage"),
        ("functional.silu", "functional.relu", "model.activation"),
        ("position_embedding_type: rope", "position_embedding_type: yarn", "model.position"),
        ("vocab_size: 51200", "vocab_size: null", "model.vocab"),
        (
            "recompute_granularity: selective",
            "recompute_granularity: full\n  recompute_method: block",
            "baseline.recompute_interval",
        ),
        ("cp_comm_type: null", "cp_comm_type: a2a+p2p", "baseline.context"),
        ("tensor_model_parallel_size: 2", "tensor_model_parallel_size: null", "baseline.tp"),
        ("hidden_size: 1024", "hidden_size: 1024\n  num_layers_in_last_pipeline_stage: 3", ""),
    ],
)
def test_what_it_leaves_open_is_asked(old, new, path):
    imported = read_file_text("run_config.yaml", CONFIG.replace(old, new, 1))
    assert path in {question.path for question in imported.questions}


def test_other_models_and_other_files_are_not_read():
    with pytest.raises(CannotRead, match=r"MambaModelProvider is no decoder-only transformer. Next: "):
        read_file_text("run_config.yaml", CONFIG.replace("GPTModelProvider", "MambaModelProvider"))
    with pytest.raises(CannotRead, match="without a section `model`"):
        read_file_text("a.yaml", "_target_: megatron.bridge.training.config.ConfigContainer\n")
    assert not is_file("a.yaml", "model: {num_layers: 2}")
