"""What no row of ms-swift's table can say: passes that follow from the devices, and the number format of a checkpoint
(ms-swift 4.6.0; see the table)."""

from __future__ import annotations

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
