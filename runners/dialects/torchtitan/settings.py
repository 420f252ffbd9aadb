"""Settings of torchtitan that no plan has: what each one means for a campaign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshtune.runners.dialects.torchtitan.keys import Key


@dataclass(frozen=True, slots=True)
class Setting:
    """says: whether a value says something of it. text: what. open: it is a question, not a note."""

    says: Callable[[Any], bool]
    text: str
    open: bool = False


def _stays(what: str) -> Setting:
    return Setting(bool, f"{what}; it stays as it is, and predictions do not know it")


def _asks(what: str) -> Setting:
    return Setting(bool, what, open=True)


_CUSTOM = _asks("a module of yours may change model, configuration and training; trials import it too")
_EIGHT_BIT = _stays("products in 8 bits; peaks are of the 16-bit format")
SETTINGS: Mapping[Key, Setting] = {
    ("training", "enable_cpu_offload"): _stays("parameters, gradients and optimizer state lie on the host"),
    ("training", "dtype"): Setting(
        lambda value: value == "bfloat16",
        "weights, gradients and optimizer state are bfloat16, without float32 copies; it stays as it is, and "
        "predictions count float32",
    ),
    ("compile", "enable"): _stays("torch.compile; the first steps take minutes"),
    ("compile", "enable_async_tensor_parallel"): _stays("tensor parallel messages behind matrix products"),
    ("parallelism", "enable_async_tensor_parallel"): _stays("tensor parallel messages behind matrix products"),
    ("parallelism", "disable_loss_parallel"): _stays("the logits are gathered over the tensor ranks"),
    ("parallelism", "enable_compiled_autograd"): _stays("a compiled backward pass"),
    ("parallelism", "expert_parallel_comm_backend"): Setting(
        lambda value: value != "standard", "other messages of experts than all-to-all; it stays as it is"
    ),
    ("parallelism", "enable_fsdp_symm_mem"): _stays("FSDP by symmetric memory"),
    ("model", "converters"): _EIGHT_BIT,
    ("float8", "enable_float8_linear"): _EIGHT_BIT,
    ("training", "enable_float8_linear"): _EIGHT_BIT,
    ("training", "enable_fp8_linear"): _EIGHT_BIT,
    ("training", "fp8_linear"): _EIGHT_BIT,
    ("optimizer", "name"): Setting(
        lambda value: value not in ("AdamW", "Adam"), "predictions count Adam's two states per weight"
    ),
    ("optimizer", "early_step_in_backward"): _stays("the optimizer runs inside of the backward pass"),
    ("model", "norm_type"): Setting(
        lambda value: value not in ("rmsnorm", "compiled_rmsnorm", "fused_rmsnorm"),
        "other normalisation than RMSNorm, which 0.2 has alone",
        open=True,
    ),
    ("fault_tolerance", "enable"): _asks("replicas by torchft, which no plan has a word for; trials keep it on"),
    ("checkpoint", "create_seed_checkpoint"): _asks("this run only writes a checkpoint and trains nothing"),
    ("memory_estimation", "enable"): _asks("this run only estimates memory and trains nothing"),
    ("comm", "mode"): Setting(
        lambda value: value not in ("default", "torchcomms"), "this run trains nothing real", open=True
    ),
    ("experimental", "custom_import"): _CUSTOM,
    ("experimental", "custom_args_module"): _CUSTOM,
    ("experimental", "custom_model_path"): _CUSTOM,
    ("job", "custom_config_module"): _CUSTOM,
}
