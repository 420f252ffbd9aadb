"""What no row of ms-swift's table can say: passes that follow from the devices, the number format of a checkpoint, what
is trained where nobody says it, and the second model of preferences (ms-swift 4.6.0; see the table)."""

from __future__ import annotations

import re
from math import ceil
from pathlib import PurePath

from meshtune.runners.programs.dialects.config_import import mapping_in
from meshtune.runners.programs.dialects.launcher_options import whole
from meshtune.runners.programs.megatron.pipeline_split import split_of_ends
from meshtune.runners.programs.reading import truth
from meshtune.runners.programs.transformers.special import checkpoint_dtype, said_dtype
from meshtune.runners.programs.transformers.words import TrainerReading

_WANTED = 16


def accumulation(reading: TrainerReading) -> None:
    """swift/trainers/arguments.py: passes until all ranks have taken 16 sequences."""
    name, launch, size = "--gradient_accumulation_steps", reading.launch, reading.fields.get("micro_batch_size")
    if not launch.devices_per_node and PurePath(launch.launcher[0]).name.startswith("python"):
        told = "one process that sees several devices: the model is cut over them (device_map), which no plan has"
        reading.ask("", f"{told}; trials start a process on each device (NPROC_PER_NODE)")
    if reading.has(name):
        reading.put("grad_accum_steps", reading.whole(name, "global_batch_size"), name)
        return
    ranks = whole(str(reading.get("num_processes"))) or (launch.nodes or 0) * (launch.devices_per_node or 0)
    if ranks and size and reading.complete("global_batch_size", name, f"max(1, {_WANTED} / (micro-batch * ranks))"):
        reading.fields["grad_accum_steps"] = max(1, ceil(_WANTED / size / ranks))


def dtype(reading: TrainerReading) -> None:
    """By --bf16 and --fp16, else by that of the weights: mixed precision in float16 for all but bfloat16."""
    said = said_dtype(reading) or checkpoint_dtype(reading)
    if said is None:
        told = "neither --torch_dtype nor --bf16 or --fp16: the checkpoint's (torch_dtype of its config.json)"
        reading.ask("workload.dtype", f"{told}. Write bfloat16 or float16")
    else:
        plain = said == "float32" and truth(reading.get("--fp16")) is False
        trained = said if said == "bfloat16" or plain else "float16"
        reading.put("dtype", trained, "--bf16", "--fp16", "--torch_dtype", "--dtype")


def _tuner(reading: TrainerReading) -> str:
    """What is trained: full, lora ..., in the words of releases 4, 3 and 2; else what the table has."""
    name = reading.first(("--tuner_type", "--train_type", "--sft_type"))
    return str(reading.get(name) if name else reading.table.lists["adapters"]["absent"]).lower()


def adapters(reading: TrainerReading) -> None:
    """One question of what is trained otherwise than predictions count it."""
    kind, model = _tuner(reading), str(reading.get(reading.first(reading.table.lists["models"]["names"])))
    sizes = filter(reading.has, ("--lora_alpha", "--target_modules", "--target_regex"))
    own = [f"rank {reading.get('--lora_rank') or 8}", *map(reading.written, sizes)]
    told = [] if kind == "full" else [f"{kind} ({', '.join(own)})" if "lora" in kind else kind]
    if not reading.has("--freeze_vit") and re.search(reading.table.lists["second_model"]["models"], model):
        told.append(f"{model} with a vision tower, which is frozen")
    if told:
        counted = "predictions count gradients and optimizer of all weights, and of no others"
        reading.ask("", f"{', '.join(told)}: {counted}: compare memory with a run")


def second_model(reading: TrainerReading) -> None:
    """swift/arguments/rlhf_args.py: pairs, and a reference, another model where there are no adapters."""
    if not reading.launch.script.removesuffix(".py").endswith("rlhf"):
        return
    kind, found = str(reading.get("--rlhf_type") or "dpo"), list[str]()
    if kind in ("dpo", "orpo", "simpo", "cpo", "rm"):
        found.append("samples in pairs, two sequences each")
    reference = kind in ("dpo", "kto", "ppo") or (kind == "grpo" and reading.get("--beta") not in ("0", "0.0"))
    if reference and _tuner(reading) == "full":
        found.append("a second model of the same size as reference")
    found += map(reading.written, filter(reading.has, ("--teacher_model", "--reward_model")))
    if kind in ("grpo", "ppo", "gkd"):
        found.append("samples that are generated in the training")
    told = ", ".join(found) or "no second model"
    counted = "predictions count one model and micro_batch_size sequences"
    reading.ask("", f"rlhf_type {kind}: {told}; {counted}: compare memory and speed with a run")


# Over Megatron.
def extra(reading: TrainerReading) -> None:
    """Further values of Megatron, as JSON, which stay: they count as words where these do not say them."""
    name, left_out = "--megatron_extra_kwargs", reading.table.words("trial.left_out")
    said = mapping_in("x.json", reading.text(name) or "{}", (".json",))
    found = {f"--{key}": str(value) for key, value in said.items()}
    reading.given = {**found, **reading.given}
    if asked := sorted(found.keys() & left_out):
        reading.ask("", f"{name} has {', '.join(asked)}, which counts more than what trials set: write it as words")


def chunks(reading: TrainerReading) -> None:
    """Model chunks of a rank, which interleave; they go with this pp alone."""
    names = reading.table.fields["vpp"].names
    name, layers, pp = reading.first(names), reading.fields.get("model.layers"), reading.fields.get("pp")
    number = reading.whole(name, "baseline.vpp") if name else 1
    if name == names[-1] and number:
        each, number = number, None
        if layers and pp and layers % (pp * each) == 0:
            number = layers // (pp * each)
        else:
            told = "into how many chunks it cuts a stage is not known here"
            reading.ask("baseline.vpp", f"{reading.written(name)}: {told}")
    if number and number > 1:
        reading.fields |= {"vpp": number, "schedule": "interleaved"}
    if name and pp:
        reading.alone.add("pp")


def stages(reading: TrainerReading) -> None:
    """Unequal stages, which go with this pp alone."""
    accounts = tuple(f"--account_for_{part}_in_pipeline_split" for part in ("embedding", "loss"))
    ends = ("--decoder_first_pipeline_num_layers", "--decoder_last_pipeline_num_layers")
    others = ("--pipeline_model_parallel_layout", *accounts)
    said = [name for name in (*ends, *others) if reading.has(name) and reading.get(name) != "false"]
    pp, layers = reading.fields.get("pp"), reading.fields.get("model.layers")
    if not said or pp == 1 or pp is None:
        return
    reading.alone.add("pp")
    sizes = [reading.whole(name) for name in ends]
    plain = layers and not any(name in others for name in said)
    found = split_of_ends(layers, pp, reading.fields.get("vpp", 1), *sizes) if plain and layers else None
    if found is None:
        told = "stages that no plan has a word for, or of an unknown model; trials keep them, with this pp alone"
        reading.ask("", f"{', '.join(map(reading.written, said))}: {told}, and predictions count equal ones")
        reading.fields |= {"first_stage_less_layers": 0, "last_stage_less_layers": 0}
    else:
        reading.fields |= dict(zip(("first_stage_less_layers", "last_stage_less_layers"), found, strict=True))
