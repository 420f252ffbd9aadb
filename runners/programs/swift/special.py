"""What no row of ms-swift's table can say: passes that follow from the devices, the number format of a checkpoint, what
is trained where nobody says it, and the second model of preferences (ms-swift 4.6.0; see the table)."""

from __future__ import annotations

import re
from math import ceil
from pathlib import PurePath

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.call import whole
from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.transformers.special import checkpoint_dtype, said_dtype
from meshtune.runners.programs.transformers.words import TABLE, TrainerReading

_WANTED = 16


def accumulation(reading: TrainerReading) -> None:
    """swift/trainers/arguments.py: passes until all ranks have taken 16 sequences."""
    name, launch, size = "--gradient_accumulation_steps", reading.launch, reading.fields.get("micro_batch_size")
    if reading.has(name):
        reading.put("grad_accum_steps", reading.whole(name, "global_batch_size"), name)
        return
    if not launch.devices_per_node and PurePath(launch.launcher[0]).name.startswith("python"):
        told = "one process that sees several devices: ms-swift cuts the model over them (device_map), which no plan has"
        reading.ask("", f"{told}; trials start a process on each device (NPROC_PER_NODE)")
    ranks = whole(str(reading.get("num_processes"))) or (launch.nodes or 0) * (launch.devices_per_node or 0)
    if ranks and size and reading.complete("global_batch_size", name, f"max(1, {_WANTED} / (micro-batch * ranks))"):
        reading.fields["grad_accum_steps"] = max(1, ceil(_WANTED / size / ranks))


def dtype(reading: TrainerReading) -> None:
    """By --bf16 and --fp16, else by that of the weights: mixed precision in float16 for all but bfloat16."""
    said = said_dtype(reading) or checkpoint_dtype(reading)
    if said is None:
        told = "neither --torch_dtype nor --bf16 or --fp16: in which format is the checkpoint (torch_dtype of its config.json)?"
        reading.ask("workload.dtype", f"{told} Write bfloat16 or float16")
    else:
        trained = "bfloat16" if said == "bfloat16" else "float16"
        reading.put("dtype", trained, "--bf16", "--fp16", "--torch_dtype", "--dtype")


def tuner(reading: Reading, absent: str) -> str:
    """What is trained: `full`, `lora`, ..., in the words of releases 4, 3 and 2. absent: where nobody says it."""
    name = reading.first(("--tuner_type", "--train_type", "--sft_type", "tuner_type", "train_type"))
    return str(reading.get(name)).lower() if name else absent


def adapters(reading: TrainerReading) -> None:
    ask_trained(reading, "lora", str(reading.get(reading.first(reading.table.lists["models"]["names"]))))


def ask_trained(reading: Reading, absent: str, model: str) -> None:
    """One question of the weights that are trained and held otherwise than predictions count them. absent: the tuner
    where nobody says it. model: its name."""
    kind, before = tuner(reading, absent), "--" if any(name.startswith("--") for name in reading.given) else ""
    sizes = [f"{before}{name}" for name in ("lora_alpha", "target_modules", "target_regex")]
    own = [f"rank {reading.get(f'{before}lora_rank') or 8}", *map(reading.written, filter(reading.has, sizes))]
    told = [] if kind == "full" else [f"{kind} ({', '.join(own)})" if "lora" in kind else kind]
    if not reading.has(f"{before}freeze_vit") and re.search(TABLE.lists["second_model"]["models"], model):
        told.append(f"{model} with a vision tower, which is frozen")
    if told:
        counted = "predictions count gradients and optimizer of all weights, and of no others"
        reading.ask("", f"{', '.join(told)}: {counted}: compare memory with a run")


def second_model(reading: TrainerReading) -> None:
    """swift/arguments/rlhf_args.py: pairs, and a reference that is a whole model unless adapters are turned off."""
    if not reading.launch.script.removesuffix(".py").endswith("rlhf"):
        return
    kind, full = str(reading.get("--rlhf_type") or "dpo"), tuner(reading, "lora") == "full"
    ask_preferences(reading, kind, "--", full=full)


def ask_preferences(reading: Reading, kind: str, before: str, *, full: bool) -> None:
    """full: all weights are trained, so that a reference is another model. before: names of settings."""
    pairs = "samples in pairs, two sequences each" if kind in ("dpo", "orpo", "simpo", "cpo", "rm") else ""
    beta = str(reading.get(f"{before}beta") or "")
    wanted = kind in ("dpo", "kto", "ppo", "grpo") and full and not (kind == "grpo" and beta in ("0", "0.0"))
    second = "a second model of the same size as reference" if wanted else ""
    second = f"a teacher, {shown(reading.get(f'{before}teacher_model'))}" if reading.has(f"{before}teacher_model") else second
    samples = "samples that are generated in the training" if kind in ("grpo", "ppo", "gkd") else ""
    told = " and ".join(filter(None, (pairs, second, samples))) or "no second model"
    counted = "predictions count one model and micro_batch_size sequences"
    reading.ask("", f"rlhf_type {kind}: {told}; {counted}: compare memory and speed with a run")
