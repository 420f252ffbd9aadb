"""The workload of an imported command line: number format, DeepSpeed's settings, and the user's other arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.programs.dialects.base import Arguments, render_lines, without
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.dialects.megatron.arguments import (
    FROM_MODEL,
    FROM_PLAN,
    FROM_SHAPES,
    FSDP_CHECKPOINT,
    VOCAB_MULTIPLE,
    WHOLE_VOCABULARY,
    Dtype,
    Flavour,
    left_out_of_trials,
)
from meshtune.runners.programs.dialects.megatron.command_line import CommandLine, is_filled_in
from meshtune.runners.programs.dialects.megatron.read_plan import deepspeed_config

# Arguments that stay as they are, and that predictions know nothing of.
_UNMAPPED: Mapping[str, str] = {
    "--expert-tensor-parallel-size": "experts cut otherwise than the rest",
    "--enable-expert-tensor-parallelism": "experts cut otherwise than the rest",
    "--moe-expert-capacity-factor": "experts that drop or pad tokens",
    "--heterogeneous-layers-config-path": "layers of several kinds",
    "--fp8-param-gather": "parameters gathered in 8 bits",
    "--fp4-format": "4-bit products; peaks are looked up for the 16-bit format",
    "--use-precision-aware-optimizer": "optimizer states of fewer bits",
    "--cpu-optimizer": "an optimizer on the host",
    "--cpu-offloading-num-layers": "activations on the host",
    "--checkpoint-in-cpu": "activations on the host",
    "--remote-device": "parameters on the host or on disk",
    "--ds-sequence-parallel-fpdt": "attention in chunks, kept on the host",
    "--distribute-saved-activations": "inputs of layers cut over the tensor ranks",
    "--partition-activations": "inputs of layers cut over the tensor ranks",
    "--use-flash-attn": "which attention this is; its memory is predicted as fused",
    "--use-flash-attn-v1": "which attention this is; its memory is predicted as fused",
    "--use-flash-attn-v2": "which attention this is; its memory is predicted as fused",
    "--use-flash-attn-triton": "which attention this is; its memory is predicted as fused",
    "--use-flash-attn-builder": "which attention this is; its memory is predicted as fused",
    "--attention-backend": "which attention this is; its memory is predicted as fused",
    "--enable-cuda-graph": "recorded kernels, and the memory that they hold",
    "--cuda-graph-impl": "recorded kernels, and the memory that they hold",
    "--random-ltd": "layers that skip tokens",
    "--mos": "a teacher beside the model",
    "--kd": "a teacher beside the model",
    "--rampup-batch-size": "a batch that grows; trials run the full one",
    "--step-batch-size-schedule": "a batch that grows; trials run the full one",
}
# What DeepSpeed's settings say again of the plan.
_DERIVED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_SAID_TWICE = {"train_batch_size": "--global-batch-size", "train_micro_batch_size_per_gpu": "--micro-batch-size"}
_FORMATS = {"bf16": Dtype.BFLOAT16, "fp16": Dtype.FLOAT16}


def read_workload(line: CommandLine) -> dict[str, Any]:
    """The spec's section: what is not model and plan, as the user has it."""
    config = _deepspeed(line) if line.through_deepspeed else {}
    dtype = _dtype(line, config)
    launch = line.launch
    found: dict[str, Any] = {"kind": "megatron"}
    if launch.script:
        found["script"] = launch.script
    if launch.directory or (launch.script and not launch.script.startswith("/")):
        found["directory"] = launch.directory or "."
    if line.through_deepspeed:
        found["flavour"] = str(Flavour.MEGATRON_DEEPSPEED)
    if dtype is not None:
        found["dtype"] = str(dtype)
    rest = {name: value for name, value in (config or {}).items() if name not in _DERIVED}
    kept = [as_written(text) for text in render_lines(_kept(line))]
    optional = {"arguments": kept, "setup": list(launch.setup), "env": dict(launch.env), "ds_config": rest}
    return found | {name: value for name, value in optional.items() if value}


def _deepspeed(line: CommandLine) -> Mapping[str, Any] | None:
    """DeepSpeed's settings, with questions for what is not there, not read, or set nowhere."""
    config, name = deepspeed_config(line), as_written(" ".join(line.arguments.get("--deepspeed_config", ())))
    path = "workload.ds_config"
    if not name:
        line.ask(path, "no --deepspeed_config: which settings DeepSpeed runs by is not said")
    elif config is None:
        there = name in line.launch.files
        why = "is no JSON that can be read" if there else "is not there"
        line.ask(path, f"--deepspeed_config {name} {why}: copy its settings here, and compare zero_stage and dtype")
    if config is None:
        return None
    auto = sorted(key for key, value in _flat(config) if value == "auto" and key.split(".")[0] not in _DERIVED)
    if auto:
        line.ask(path, f"{name} has `auto` for {', '.join(auto)}, which Megatron fills in nowhere")
    unfilled = sorted(key for key, value in _flat(config) if isinstance(value, str) and not is_filled_in(value))
    if unfilled:
        line.ask(path, f"{name}: what {', '.join(unfilled)} hold is not known here; fill it in")
    for key, argument in _SAID_TWICE.items():
        said = config.get(key)
        if isinstance(said, int) and line.arguments.get(argument, (str(said),)) != (str(said),):
            path = "baseline.micro_batch_size" if argument == "--micro-batch-size" else "global_batch_size"
            told = f"{argument} {' '.join(line.arguments[argument])}, but {name} has {key} {said}: say which is right"
            line.ask(path, told)
    offloads = sorted({key.split(".")[1] for key, _ in _flat(config) if key.startswith("zero_optimization.offload_")})
    if offloads:
        line.note(f"{name}: {', '.join(offloads)}: stays as it is, but predictions do not know memory on the host")
    return config


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{path}.{key}" if path else str(key))]
    return [(path, value)]


def _dtype(line: CommandLine, config: Mapping[str, Any] | None) -> Dtype | None:
    path = "workload.dtype"
    said = {dtype for name, dtype in (("--bf16", Dtype.BFLOAT16), ("--fp16", Dtype.FLOAT16)) if line.has(name)}
    sections = {key: (config or {}).get(key) for key in _FORMATS}
    enabled = {key: section.get("enabled") for key, section in sections.items() if isinstance(section, Mapping)}
    configured = {_FORMATS[key] for key, value in enabled.items() if value is True}
    if odd := [key for key, value in enabled.items() if not isinstance(value, bool)]:
        line.ask(path, f"whether {', '.join(odd)} is enabled in DeepSpeed's settings is not known")
        return None
    formats = said | configured
    if len(formats) > 1:
        line.ask(path, f"{', '.join(sorted(formats))} at once: --bf16, --fp16 and DeepSpeed's file must say one")
        return None
    if formats:
        return formats.pop()
    if line.through_deepspeed and config is None:
        line.ask(path, "neither --bf16 nor --fp16, and DeepSpeed's file, which may say one, was not read")
        return None
    if not line.complete(path, "--bf16 or --fp16", "float32"):
        return None
    line.note("neither --bf16 nor --fp16: Megatron trains in float32")
    return Dtype.FLOAT32


def _kept(line: CommandLine) -> Arguments:
    """The user's other arguments, with questions for values that are not known."""
    kept = without(line.arguments, FROM_PLAN | FROM_MODEL | FROM_SHAPES | {"--local_rank", "--local-rank"})
    if not line.has(*WHOLE_VOCABULARY):
        kept = without(kept, (VOCAB_MULTIPLE,))
    if kept.get("--ckpt-format") == (FSDP_CHECKPOINT,):
        kept = without(kept, ("--ckpt-format",))
    if line.through_deepspeed and line.has("--num-experts"):
        kept = without(kept, ("--create-moe-param-group",))
        # Megatron-DeepSpeed's default, which is not that of trials.
        kept = {"--expert-interval": ("2",), **kept}
    for name in kept:
        if name in _UNMAPPED:
            line.note(f"{name} stays as it is, but predictions do not know {_UNMAPPED[name]}")
    unknown = {name: values for name, values in kept.items() if not all(map(is_filled_in, values))}
    unused = left_out_of_trials(unknown)
    if unused:
        line.note(
            f"what {', '.join(unused)} hold is not known here; trials leave them out, an export has them as written"
        )
    for name in unknown.keys() - unused:
        line.ask("workload.arguments", f"{as_written(' '.join((name, *unknown[name])))}: fill in what it holds")
    return kept
