"""What no row of the Trainer's table can say: the model by its config.json, DeepSpeed's file, FSDP's options, number
formats, and what changes which weights are trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.accelerate.special import TABLE as ACCELERATE
from meshtune.runners.programs.accelerate.special import Sharding, keeps_stage, put_stage, quoted, settings_of
from meshtune.runners.programs.deepspeed.reader import read_settings
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.dialects.config_import import at, flat, mapping_in, read_mapping
from meshtune.runners.programs.named_models import ask_shapes, config_named, read_shapes
from meshtune.runners.programs.reading import path_of, truth
from meshtune.runners.programs.rows import DTYPES, same
from meshtune.runners.programs.transformers.config_json import DECODERS, FAMILIES, OTHERS, SHAPE_OF, read_config
from meshtune.runners.programs.transformers.words import TABLE, TrainerReading
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.checks import InvalidValue, raising

DS_FILE = "ds_config.json"
_ROLLOUT = "training.rollout"
_STAGE = "baseline.zero_stage"
_MIXED = next(row for row in ACCELERATE.rows if row.field == "dtype")


# The model.
def shapes(reading: TrainerReading) -> None:
    """By the file of the model that the arguments name, or a preset. Raises CannotRead for a model that is no
    decoder-only transformer."""
    names = reading.table.lists["models"]["names"]
    value = str(reading.get(reading.first(names))).rstrip("/")
    text = config_named(value, reading.launch.files)
    others = OTHERS & set(value.lower().rpartition("/")[2].split("-"))
    if text:
        reading.fields |= flat({"model": _of_file(reading, text, f"{value}/config.json")})
    elif others:
        raise CannotRead(f"{reading.place}: {as_written(value)} is a model of {min(others)}; {DECODERS}")
    else:
        read_shapes(reading, {"names": names})


def _of_file(reading: TrainerReading, text: str, name: str) -> dict[str, Any]:
    with raising(CannotRead, name, UnreadableText):
        config = read_json(text)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if isinstance(kind, str) and kind in FAMILIES:
        try:
            return read_config(config)
        except InvalidValue as error:
            for problem in error.problems:
                reading.ask(f"model.{SHAPE_OF.get(problem.path, 'layers')}", f"{name}: {problem}")
    elif any(other in str(kind).lower() for other in OTHERS):
        raise CannotRead(f"{name} is a model of {kind}; {DECODERS}")
    else:
        ask_shapes(reading, f"{name} has model_type {shown(kind)}; known are {', '.join(FAMILIES)}")
    return {}


# What is generated: TRL 1.16, trl/trainer/{grpo,rloo}_config.py (__post_init__), grpo_trainer.py (_prepare_inputs).
def compared(reading: TrainerReading) -> None:
    """With a reference: RLOO's coefficient is 0.05 unless said, GRPO's 0."""
    reading.fields["compared"] = bool(reading.share("--beta")) if reading.has("--beta") else "rloo" in reading.script


def rollout(reading: TrainerReading) -> None:
    """What generates: vLLM with a share of the devices, a server of its own, or the model itself, with `each` device's
    rows all in flight; and the updates of a generation, of whose rows an update has the global batch."""
    fields, vllm = reading.fields, bool(truth(reading.get("--use_vllm")))
    rows, passes = (reading.whole(f"--{name}") for name in ("generation_batch_size", "steps_per_generation"))
    micro, own = (fields.get(name) or 1 for name in ("micro_batch_size", "grad_accum_steps"))
    devices = (fields.get("nodes") or 1) * (fields.get("devices_per_node") or 1)
    each = rows // devices if rows else (passes or own) * micro
    fields |= {
        f"{_ROLLOUT}.updates": max(1, each // (own * micro)) * (reading.whole("--num_iterations") or 1),
        f"{_ROLLOUT}.graphs": vllm,
        f"{_ROLLOUT}.sleeps": not vllm or bool(truth(reading.get("--vllm_enable_sleep_mode"))),
    }
    if passes:
        reading.alone.add("micro_batch_size")
        reading.note("--steps_per_generation counts micro-batches: with --generation_batch_size trials have others")
    if vllm and reading.get("--vllm_mode") == "server":
        reading.guess(f"{_ROLLOUT}.devices", 1, "devices of vLLM's server, which runs while trials do: how many?")
    elif vllm:
        fields[f"{_ROLLOUT}.share"] = reading.share("--vllm_gpu_memory_utilization") or 0.3
    else:
        fields |= {f"{_ROLLOUT}.max_rows": max(1, each), f"{_ROLLOUT}.share": 0.0}


# What shards.
def zero_stage(reading: TrainerReading) -> None:
    """By Accelerate, or by the script's own --deepspeed or --fsdp. Raises CannotRead."""
    launcher = reading.sharding
    if not launcher.decides:
        own = _of_script(reading)
        reading.sharding = replace(own or launcher, head=launcher.head)
        # Accelerate's file may say that nothing shards.
        if own is None and (launcher.head or reading.complete(_STAGE, "--fsdp or --deepspeed", 0)):
            reading.fields["zero_stage"] = 0
    if reading.sharding.settings is not None:
        _read_settings(reading, reading.sharding.settings)


def _of_script(reading: TrainerReading) -> Sharding | None:
    """None where the arguments say nothing of it."""
    for name in ("--deepspeed", "--fsdp"):
        said = str(reading.get(name))
        shipped: Mapping[str, Any] = reading.table.lists.get("shipped", {}).get(name[2:], {})
        # Names, or the ends of paths.
        end = next((end for end in shipped if said == end or said.endswith(f"/{end}")), None)
        if end is not None and said not in reading.launch.files:
            before = said.removesuffix(end)
            return _of_shipped(reading, name, shipped[end], {f"{before}{word}": each for word, each in shipped.items()})
    file = next((name for name in ("--deepspeed", "--deepspeed_config") if isinstance(reading.get(name), str)), "")
    switch = ("--deepspeed",) if reading.get("--deepspeed") is True else ()
    if file:
        text = str(reading.get(file))
        files = {**reading.launch.files, **({text: text} if text.startswith("{") else {})}
        settings = settings_of(reading, text, files)
        words = (*switch, file, f"{{directory}}/{DS_FILE}")
        return Sharding(framework="deepspeed", settings=settings, script=words, fixed=keeps_stage(settings))
    if switch:
        # DeepSpeed-Chat and others make the settings of their own arguments.
        stage = reading.whole("--zero_stage", _STAGE, least=0)
        if stage is not None:
            reading.put("zero_stage", stage, "--zero_stage")
        else:
            reading.ask(_STAGE, "--deepspeed without a file: which ZeRO stage does the script ask DeepSpeed for?")
        return Sharding(framework="deepspeed", script=switch)
    return _fsdp(reading) if reading.has("--fsdp") else None


def _of_shipped(reading: TrainerReading, name: str, own: Mapping[str, Any], shipped: Mapping[str, Any]) -> Sharding:
    """By the name of one of the program's own files."""
    reading.put("zero_stage", own["stage"], name)
    if "/" in (file := str(reading.get(name))):
        told = f"is not there, and is taken for the one of its name that {reading.table.lists['program']['title']} has"
        reading.ask("", f"{name} {file} {told}: is it?")
    if own.get("offloads"):
        reading.put("training.offload", own["offloads"], name)
        reading.note(f"{reading.written(name)} offloads to the host; it stays so")
    if recomputes := own.get("recomputes", False):
        reading.put("recompute", "full", name)
    fixed = bool(own.get("offloads") or recomputes)
    stages = {each["stage"]: (name, word) for word, each in shipped.items() if not each.get("offloads")}
    return Sharding(
        framework="deepspeed" if name == "--deepspeed" else "fsdp",
        stages={} if fixed else stages,
        of_script=not fixed,
        script=(name, str(reading.get(name))) if fixed else (),
        fixed=fixed,
        recomputes=recomputes,
    )


def _fsdp(reading: TrainerReading) -> Sharding | None:
    """--fsdp, alone or with a truth value (transformers 5), or with a list of options (4, and 5 until 5.20)."""
    said = reading.get("--fsdp")
    options = " ".join(said if isinstance(said, list) else [str(said)]).lower().split()
    if not options or truth(options[0]) is False:
        return None
    config, strategies = fsdp_config(reading), ACCELERATE.lists["strategies"]
    named = [option for option in options if option in strategies]
    put_stage(reading, named[0] if named else config.get("reshard_after_forward", True), "--fsdp", "--fsdp_config")
    offloaded = "offload" in options or truth(config.get("cpu_offload", False))
    checkpoints = recomputes_in(config, reading, offloaded=bool(offloaded))
    kept = " ".join(option for option in options if option not in strategies and truth(option) is None)
    names = ACCELERATE.lists["in_node"] if "zero_nodes" in reading.fields else {2: "shard_grad_op", 3: "full_shard"}
    sharded = {int(stage): ("--fsdp", quoted(f"{name} {kept}".strip())) for stage, name in names.items()}
    stages = sharded if offloaded or checkpoints else {0: (), **sharded}
    return Sharding(stages=stages, of_script=True, recomputes=checkpoints, fixed=False)


def recomputes_in(config: Mapping[str, Any], reading: TrainerReading, *, offloaded: bool) -> bool:
    """Whether FSDP itself recomputes; with a note where it offloads."""
    if offloaded:
        reading.fields["training.offload"] = "weights"
        reading.note("FSDP offloads to the host; it stays so")
    if checkpoints := bool(truth(config.get("activation_checkpointing", False))):
        reading.put("recompute", "full", "--fsdp_config")
    return checkpoints


def fsdp_config(reading: TrainerReading) -> dict[str, Any]:
    """The keys of --fsdp_config, without the prefix that they may have."""
    value = reading.text("--fsdp_config", _STAGE) or ""
    text = reading.launch.files.get(value, value if value.startswith("{") else None)
    if text is None:
        if value:
            told = f"--fsdp_config {value} is not there: does it change when weights are gathered, or what recomputes?"
            reading.ask(_STAGE, told)
        return {}
    return {key.removeprefix("fsdp_"): inner for key, inner in read_mapping(f"{value[:60]}.json", text).items()}


def _read_settings(reading: TrainerReading, settings: Mapping[str, Any]) -> None:
    """DeepSpeed's settings, whose `auto` is what the arguments say."""
    fields, dtype = reading.fields, said_dtype(reading)
    of_arguments = {
        "train_micro_batch_size_per_gpu": fields.get("micro_batch_size"),
        "gradient_accumulation_steps": fields.get("grad_accum_steps"),
        # Follows from the two above and the devices.
        "train_batch_size": None,
        "bf16.enabled": None if dtype is None else dtype == "bfloat16",
        "fp16.enabled": None if dtype is None else dtype == "float16",
    }
    for part, offload in (("param", "weights"), ("optimizer", "optimizer")):
        if str(at(settings, f"zero_optimization.offload_{part}.device")).lower() != "none":
            fields.setdefault("training.offload", offload)
    read, ranks = read_settings(settings, of_arguments)
    if ranks is not None:
        # The file keeps it.
        fields["zero_ranks"] = reading.kept["zero_group"] = ranks
        reading.said["zero_ranks"] = f"mics_shard_size {ranks}"
    reading.questions += read.questions
    for note in read.notes:
        reading.note(note)
    for name, value in {"zero_stage": 0, **read.plan, "dtype": read.workload["dtype"]}.items():
        # The Trainer refuses numbers that differ from its own.
        if name in ("micro_batch_size", "grad_accum_steps") and reading.said.get(name) and fields.get(name) != value:
            reading.ask(path_of(name), f"{reading.said[name]}, but DeepSpeed's settings say {value}: which is right?")
        # A degree that the program's own words say counts; DeepSpeed's settings have most of them as 1.
        said = name in ("tp", "pp", "cp") and fields.get(name, 1) != 1
        if name != "dp" and value is not None and not said:
            fields[name] = value


def said_dtype(reading: TrainerReading) -> str | None:
    """By --bf16 and --fp16, which count more than the launcher's (TrainingArguments.__post_init__); else by the format
    that the model is loaded in, where the arguments say it."""
    if known := reading.fields.get("dtype"):
        return str(known)
    for name, format_ in (("--bf16", "bfloat16"), ("--fp16", "float16")):
        if reading.flag(name, "workload.dtype"):
            return format_
    mixed = reading.get("mixed_precision")
    # YAML reads a bare no as false.
    word = None if mixed is None else _MIXED.value("no" if mixed is False else mixed)
    if mixed is not None and word is None:
        reading.ask("workload.dtype", f"mixed_precision {shown(mixed)}: write the format of most products")
    loaded = reading.first(("--torch_dtype", "--dtype"))
    said = reading.text(loaded, "workload.dtype") if loaded else None
    return word if word not in (None, "float32") else said if said in DTYPES else None


def dtype(reading: TrainerReading) -> None:
    if (said := said_dtype(reading)) is not None:
        reading.put("dtype", said, "--bf16", "--fp16", "mixed_precision", "--torch_dtype", "--dtype")
    elif not reading.is_asked("workload.dtype"):
        trl = reading.variant == "trl" and not reading.has("--bf16")
        likely = TABLE.lists["formats"]["trl" if trl else "absent"]
        reading.guess("dtype", likely["dtype"], f"dtype {likely['dtype']}: {likely['why']}")


def checkpoint_dtype(reading: TrainerReading) -> str | None:
    """The format of the weights by the model's config.json, or by its name on the Hub; None where it is not known."""
    models = reading.table.lists["models"]
    value = str(reading.get(reading.first(models["names"]))).rstrip("/")
    config = mapping_in("config.json", reading.launch.files.get(f"{value}/config.json", ""), (".json",))
    if (said := config.get("torch_dtype", config.get("dtype"))) in DTYPES:
        return str(said)
    return "bfloat16" if re.fullmatch(models["bfloat16"], value) else None


def profile(reading: TrainerReading, framework: str) -> str:
    """The name of the physics, by the words for weights and loss too."""
    mixed = reading.get("--bf16") if reading.has("--bf16") else reading.variant == "trl"
    upcast = truth(mixed) or reading.get("mixed_precision") not in (None, False, "no")
    for kind, words in TABLE.lists["profiles"].get(framework, {}).items():
        said = any(same(value, reading.get(name)) for name, value in words.items())
        if said and not (upcast and kind == "fsdp-pure-bf16"):
            return str(kind)
    return framework.format(dtype=reading.fields.get("dtype") or "bfloat16")


def tower(reading: TrainerReading) -> None:
    """A vision tower, by the model's name; with it the projector and others that scripts name."""
    named = [name for name in TABLE.words("tower.names") if reading.has(name)]
    model = reading.first(reading.table.lists["models"]["names"])
    counted = "model.tower_parameters" in reading.fields
    if model and not counted and re.search(TABLE.lists["tower"]["models"], str(reading.get(model))):
        named.append(model)
    if named:
        told = "a tower beside the decoder, of a size not known here: write model.tower_parameters"
        reading.ask("", f"{', '.join(map(reading.written, sorted(named)))}: {told}")
