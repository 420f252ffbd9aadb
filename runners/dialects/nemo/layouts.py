"""Where each program on Megatron-Core keeps what: NeMo 2 recipes, NeMo 1 and Megatron-Bridge, by dotted keys.

From NVIDIA/NeMo at 8cfedd72 (September 2025) and NVIDIA-NeMo/Megatron-Bridge at 067f987d (August 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtune.runners.dialects.config_import import at


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """model: the section of the shapes. parallel: that of the degrees. granularity: the key of recomputation, of which
    method and number of layers are `recompute` with their endings. distributed: keys that shard the optimizer.
    trials: what a trial sets beside the plan. removed: keys that trials do without."""

    name: str
    example: str
    model: str
    parallel: str
    micro_batch_size: str
    global_batch_size: str
    seq_len: tuple[str, ...]
    recompute: str
    distributed: tuple[str, ...]
    nodes: str
    devices: str
    trials: Mapping[str, Any]
    removed: tuple[str, ...]
    log: Mapping[str, str]


# nemo/lightning/pytorch/callbacks/progress_printer.py (` | name: value`), and Lightning's bar in NeMo 1 (`name=value`).
_TIMING = {
    "step": r"global_step[:=] ?([\d.]+)",
    "step_time_s": r"train_step_timing in s[:=] ?([\d.e+-]+)",
    "loss": r"reduced_train_loss[:=] ?([\d.e+-]+|nan|inf)",
}
NEMO_2 = Layout(
    name="NeMo 2",
    example="[nemo, llm, pretrain, --yaml, '{directory}/nemo.yaml', --yes], or your script that loads the recipe",
    model="model.config",
    parallel="trainer.strategy",
    micro_batch_size="data.micro_batch_size",
    global_batch_size="data.global_batch_size",
    seq_len=("data.seq_length",),
    recompute="model.config.recompute",
    distributed=("optim.config.use_distributed_optimizer",),
    nodes="trainer.num_nodes",
    devices="trainer.devices",
    # As NeMo's own scripts/performance/helpers.py has it.
    trials={
        "trainer.max_steps": "{steps}",
        "trainer.val_check_interval": "{steps}",
        "trainer.limit_val_batches": 0,
        "trainer.log_every_n_steps": 1,
        "trainer.enable_checkpointing": False,
    },
    removed=("log.ckpt", "log.wandb", "log.tensorboard", "resume"),
    log=_TIMING,
)
NEMO_1 = Layout(
    name="NeMo 1",
    example="[python, megatron_gpt_pretraining.py, --config-path, '{directory}', --config-name, nemo], with your paths",
    model="model",
    parallel="model",
    micro_batch_size="model.micro_batch_size",
    global_batch_size="model.global_batch_size",
    seq_len=("model.encoder_seq_length", "model.data.seq_length"),
    recompute="model.activations_checkpoint",
    distributed=(),
    nodes="trainer.num_nodes",
    devices="trainer.devices",
    trials={
        "trainer.max_steps": "{steps}",
        "trainer.val_check_interval": "{steps}",
        "trainer.limit_val_batches": 0,
        "trainer.log_every_n_steps": 1,
        "exp_manager.create_checkpoint_callback": False,
        "exp_manager.resume_if_exists": False,
        "exp_manager.create_wandb_logger": False,
    },
    removed=(),
    log=_TIMING,
)
BRIDGE = Layout(
    name="Megatron-Bridge",
    example="[python, train.py, '{directory}/nemo.yaml'], whose train.py calls ConfigContainer.from_yaml",
    model="model",
    parallel="model",
    micro_batch_size="train.micro_batch_size",
    global_batch_size="train.global_batch_size",
    seq_len=("dataset.seq_length", "dataset.sequence_length", "model.seq_length"),
    recompute="model.recompute",
    distributed=("optimizer.use_distributed_optimizer", "ddp.use_distributed_optimizer"),
    nodes="",
    devices="",
    trials={"train.train_iters": "{steps}", "logger.log_interval": 1},
    removed=("checkpoint.save", "checkpoint.load", "logger.tensorboard_dir", "logger.wandb_project"),
    # src/megatron/bridge/training/utils/train_utils.py.
    log={
        "step": r"iteration\s+(\d+)/\s*\d+ \|",
        "step_time_ms": r"elapsed time per iteration \(ms\): ([\d.]+)",
        "loss": r"lm loss: ([\d.E+-]+|nan|inf)",
    },
)


def layout_of(config: Mapping[str, Any]) -> Layout | None:
    """Whose configuration it is; None: of none of them."""
    model, own = str(at(config, "model._target_") or ""), str(config.get("_target_") or "")
    if "megatron.bridge." in own or "megatron.bridge." in model:
        return BRIDGE
    strategy = str(at(config, "trainer.strategy._target_") or "")
    if "nemo.lightning" in strategy or "nemo.collections" in model or own.startswith("nemo."):
        return NEMO_2
    named = isinstance(config.get("model"), Mapping) and isinstance(config.get("trainer"), Mapping)
    if named and {"micro_batch_size", "tensor_model_parallel_size"} <= config["model"].keys():
        return NEMO_1
    if {"model", "train"} <= config.keys() and at(config, "train.global_batch_size") is not None:
        return BRIDGE
    return None
