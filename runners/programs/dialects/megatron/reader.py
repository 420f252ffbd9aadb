"""Reads starts and logs of Megatron: model, plan, number format, and the user's other arguments, which stay.

Nothing is guessed: what is neither said nor Megatron's default for certain is an open question (decision 0036)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from meshtune.runners.programs.dialects.base import Arguments, CannotRead, Imported, Launch, render_lines, without
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.dialects.bash.launch import find_launch
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
from meshtune.runners.programs.dialects.megatron.command_line import CommandLine, is_filled_in, read_command_line
from meshtune.runners.programs.dialects.megatron.log_dump import Dump, find_dump
from meshtune.runners.programs.dialects.megatron.log_dump import is_log as is_log
from meshtune.runners.programs.dialects.megatron.read_model import read_model
from meshtune.runners.programs.dialects.megatron.read_plan import deepspeed_config, derived, read_plan
from meshtune.search_spaces.checks import names_in

# Three of these together are Megatron's.
_CORE = names_in("""
    --num-layers --hidden-size --num-attention-heads --seq-length --max-position-embeddings --encoder-num-layers
    --micro-batch-size --global-batch-size --train-iters --tensor-model-parallel-size --pipeline-model-parallel-size
    --tokenizer-type
""")
# What a part of the program's name says that it trains; the programs pretrain_*.py, finetune_*.py and train_*.py of
# NVIDIA/Megatron-LM, core_v0.4.0 to d98e8a64, and of deepspeedai/Megatron-DeepSpeed 4efb479d.
_OTHER_MODELS: Mapping[str, str] = {
    part: kind
    for kind, parts in {
        "BERT": "bert",
        "T5": "t5",
        "UL2": "ul2",
        "a retriever": "ict biencoder orqa retro",
        "a vision model": "vision vit inpaint classify dino",
        "a multimodal model": "multimodal mimo vlm",
        "a state-space or hybrid model": "mamba hybrid",
        "by reinforcement": "rl",
    }.items()
    for part in parts.split()
}
# Arguments that only such programs have a use for.
_OTHER_ARGUMENTS: Mapping[str, str] = {
    name: kind
    for kind, names in {
        "an encoder-decoder": "--encoder-num-layers --decoder-num-layers --decoder-seq-length",
        "BERT or T5": "--mask-prob --bert-no-binary-head",
        "a retriever": "--ict-head-size --retro-add-retriever",
        "a vision model": "--vision-pretraining --img-h",
        "a hybrid model": "--hybrid-layer-pattern --hybrid-override-pattern --hybrid-attention-ratio",
        "reinforcement learning": "--perform-rl-step",
    }.items()
    for name in names.split()
}
# Megatron's tools and tasks, which train nothing or nothing from the start: parts of their paths, and their arguments.
_TOOLS = frozenset(
    {"tasks", "tools", "generate", "generation", "server", "inference", "evaluate", "eval", "checkpoint"}
)
_OF_TOOLS = frozenset(
    {"--task", "--out-seq-length", "--sample-output-file", "--genfile", "--top_p", "--top_k", "--eval_fp32"}
)
_PROGRAM = re.compile(r"(pre)?train_\w+|finetune_\w+")


def is_program(launch: Launch) -> bool:
    names = {word.partition("=")[0] for word in launch.words}
    if "bridge" in launch.script or "accelerate" in launch.script or "--model_name_or_path" in names:
        return False
    theirs = len(names & _CORE)
    stem = PurePath(launch.script).stem
    return theirs >= 3 or (bool(_PROGRAM.fullmatch(stem)) and (theirs > 0 or stem.endswith(("_gpt", "_bert", "_t5"))))


def refuse_other_models(launch: Launch) -> None:
    """Raises CannotRead, by the program's name or by arguments that no GPT has."""
    stem = PurePath(launch.script).stem.lower()
    parts = stem.split("_")
    other = next((_OTHER_MODELS[part] for part in parts if part in _OTHER_MODELS), "")
    names = {word.partition("=")[0] for word in launch.words}
    telling = sorted(names & _OTHER_ARGUMENTS.keys())
    # pretrain_gpt.py has all arguments, and takes no notice of most of these.
    if "gpt" in parts:
        telling = [name for name in telling if name.startswith(("--hybrid", "--encoder", "--decoder", "--retro-add"))]
    folders = {part for folder in PurePath(launch.script).parts for part in PurePath(folder).stem.lower().split("_")}
    tools = sorted(names & _OF_TOOLS) + (sorted(folders & _TOOLS) if parts[0] != "pretrain" else [])
    if tools:
        told = f"{launch.place}: Megatron, but {launch.script} does not pretrain ({tools[0]})"
        raise CannotRead(f"{told}. Next: the script that starts pretrain_gpt.py")
    if not other and not telling:
        return
    why = f"{launch.script} trains {other}" if other else f"{telling[0]} is for {_OTHER_ARGUMENTS[telling[0]]}"
    raise CannotRead(
        f"{launch.place}: Megatron, but {why}; the dialect reads decoder-only transformers (pretrain_gpt.py). "
        "Next: a spec with `kind: command` (docs/how-to/workloads.md)"
    )


def parse(text: str) -> Imported:
    """What a launch script, or a file of arguments, says. Raises CannotRead."""
    return read_launch(find_launch(text))


def read_launch(launch: Launch) -> Imported:
    """What one start of the program says. Raises CannotRead."""
    refuse_other_models(launch)
    if launch.script.startswith("-m "):
        raise CannotRead(
            f"{launch.place}: Megatron's arguments, but {launch.script} is no file: the workload `megatron` starts the "
            "path of one. Next: name the file that the module is, and import again"
        )
    line = read_command_line(launch)
    if line.has("--yaml-cfg"):
        raise CannotRead(
            f"{launch.place}: Megatron-LM with --yaml-cfg, whose file has all arguments. Next: import the log of a run "
            "(meshtune import RUN.log), which shows what it resolved"
        )
    return _imported(line)


def read_log(text: str) -> Imported:
    """What the last dump of arguments in a training's log says. Raises CannotRead."""
    dump: Dump = find_dump(text)
    refuse_other_models(dump.launch)
    line = read_command_line(dump.launch, dump.devices)
    for question in dump.questions:
        line.ask(*question)
    for note in dump.notes:
        line.note(note)
    return _imported(line)


def _imported(line: CommandLine) -> Imported:
    plan = read_plan(line)
    model = read_model(line)
    batch, found = derived(line, plan)
    workload = read_workload(line)
    return Imported(
        workload=workload,
        model=model,
        plan={**plan, **found},
        global_batch_size=batch,
        nodes=line.launch.nodes,
        devices_per_node=line.launch.devices_per_node,
        questions=tuple(line.questions),
        notes=tuple(dict.fromkeys(line.notes)),
    )


# The workload: number format, DeepSpeed's settings, and the user's other arguments.
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
