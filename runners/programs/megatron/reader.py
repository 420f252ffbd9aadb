"""Reads starts and logs of Megatron: model, plan, number format, and the user's other arguments, which stay.

Nothing is guessed: what is neither said nor Megatron's default for certain is an open question (decision 0036)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.dialects.base import Arguments, CannotRead, Imported, Launch, render_lines, without
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.dialects.config_import import flat
from meshtune.runners.programs.megatron.command_line import CommandLine, may_be_another, read_command_line
from meshtune.runners.programs.megatron.log_dump import find_dump
from meshtune.runners.programs.megatron.log_dump import is_log as is_log
from meshtune.runners.programs.megatron.options import (
    FROM_MODEL,
    FROM_PLAN,
    FROM_SHAPES,
    TABLE,
    VOCAB_MULTIPLE,
    WHOLE_VOCABULARY,
    Flavour,
    left_out_of_trials,
)
from meshtune.runners.programs.megatron.special import deepspeed_config
from meshtune.runners.programs.reading import is_filled_in

_PROGRAM: Mapping[str, str] = TABLE.lists["program"]
_FLAGS = TABLE.words("program.flags")
_NOT_FLAGS = TABLE.words("program.not_flags")
_KINDS: Mapping[str, Mapping[str, str]] = {
    section: {word: kind for kind, words in TABLE.lists[section].items() for word in words.split()}
    for section in ("other_models", "other_arguments")
}
# What DeepSpeed's settings say again of the plan.
_DERIVED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_SAID_TWICE = {"train_batch_size": "--global-batch-size", "train_micro_batch_size_per_gpu": "--micro-batch-size"}


def is_program(launch: Launch) -> bool:
    """Whether the start is of Megatron by its words and its script's name, and not of a trainer that took them over."""
    names = [word.partition("=")[0] for word in launch.words if word.startswith("--")]
    if re.search(_PROGRAM["not_script"], launch.script) or _NOT_FLAGS.intersection(names):
        return False
    if may_be_another(launch.script, names) and not TABLE.words("program.sure").intersection(names):
        return False
    theirs, stem = len(_FLAGS.intersection(names)), PurePath(launch.script).stem
    named = theirs > 0 or re.fullmatch(_PROGRAM["script_alone"], stem)
    return theirs >= 3 or bool(re.fullmatch(_PROGRAM["script"], stem) and named)


def refuse_other_models(launch: Launch) -> None:
    """Raises CannotRead, by the program's name or by arguments that no GPT has."""
    stem = PurePath(launch.script).stem.lower()
    parts = stem.split("_")
    other = next((kind for part in parts if (kind := _KINDS["other_models"].get(part))), "")
    names = {word.partition("=")[0] for word in launch.words}
    telling = sorted(names & _KINDS["other_arguments"].keys())
    # pretrain_gpt.py has all arguments, and takes no notice of most of these.
    if "gpt" in parts:
        telling = [name for name in telling if name.startswith(("--hybrid", "--encoder", "--decoder", "--retro-add"))]
    folders = {part for folder in PurePath(launch.script).parts for part in PurePath(folder).stem.lower().split("_")}
    tools = sorted(names & TABLE.words("tools.arguments"))
    tools += sorted(folders & TABLE.words("tools.folders")) if parts[0] != "pretrain" else []
    if tools:
        told = f"{launch.place}: Megatron, but {launch.script} does not pretrain ({tools[0]})"
        raise CannotRead(f"{told}. Next: the script that starts pretrain_gpt.py")
    if not other and not telling:
        return
    why = f"{launch.script} trains {other}" if other else f"{telling[0]} is for {_KINDS['other_arguments'][telling[0]]}"
    raise CannotRead(
        f"{launch.place}: Megatron, but {why}; the dialect reads decoder-only transformers (pretrain_gpt.py). "
        "Next: a spec with `kind: command` (docs/how-to/workloads.md)"
    )


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
    launch, counts = find_dump(text)
    refuse_other_models(launch)
    line = read_command_line(launch, counts.get("devices"))
    line.questions += launch.questions
    line.fields |= counts
    return _imported(line)


def _imported(line: CommandLine) -> Imported:
    more = line.more
    if line.has("--use-checkpoint-args"):
        # The shapes are those that a checkpoint was written with.
        line.more = f"{more} --use-checkpoint-args".strip()
    line.table.read(line, "model")
    line.more = more
    line.table.read(line, "plan")
    line.table.remark(line)
    _batch(line)
    return line.imported(_workload(line))


def _batch(line: CommandLine) -> None:
    line.fields |= {"nodes": line.launch.nodes, "devices_per_node": line.launch.devices_per_node}
    if None in (line.launch.nodes, line.launch.devices_per_node):
        told = f"{line.devices} devices in all" if line.devices else "it is not known on how many devices it starts"
        line.ask("cluster.nodes", f"{told}: say nodes and devices per node; dp follows from them")
    alone = not line.has("--global-batch-size") and line.complete(
        "global_batch_size", "--global-batch-size", "size * dp"
    )
    solve(line, {"grad_accum_steps": 1} if alone else {})
    if alone and (batch := line.fields.get("global_batch_size")):
        line.note(f"no --global-batch-size: Megatron takes a micro-batch per data-parallel rank, {batch} in all")


def _workload(line: CommandLine) -> dict[str, Any]:
    """The spec's section: what is not model and plan, as the user has it."""
    config, launch = _deepspeed(line) if line.through_deepspeed else {}, line.launch
    relative = launch.script and not launch.script.startswith("/")
    found: dict[str, Any] = {
        "kind": "megatron",
        "script": launch.script,
        "directory": launch.directory or ("." if relative else ""),
        "flavour": str(Flavour.MEGATRON_DEEPSPEED) if line.through_deepspeed else "",
        "dtype": line.fields.get("dtype"),
        "arguments": [as_written(text) for text in render_lines(_kept(line))],
        "setup": list(launch.setup),
        "env": dict(launch.env),
        "ds_config": {name: value for name, value in (config or {}).items() if name not in _DERIVED},
    }
    return {name: value for name, value in found.items() if value}


def _deepspeed(line: CommandLine) -> Mapping[str, Any] | None:
    """DeepSpeed's settings, with questions for what is not there, not read, or set nowhere."""
    config, name = deepspeed_config(line), as_written(str(line.get("--deepspeed_config") or ""))
    path = "workload.ds_config"
    if not name:
        line.ask(path, "no --deepspeed_config: which settings DeepSpeed runs by is not said")
    elif config is None:
        why = "is no JSON that can be read" if name in line.launch.files else "is not there"
        line.ask(path, f"--deepspeed_config {name} {why}: copy its settings here, and compare zero_stage and dtype")
    if config is None:
        return None
    values = flat(config)
    if auto := sorted(key for key, value in values.items() if value == "auto" and key.split(".")[0] not in _DERIVED):
        line.ask(path, f"{name} has `auto` for {', '.join(auto)}, which Megatron fills in nowhere")
    if unfilled := sorted(key for key, value in values.items() if isinstance(value, str) and not is_filled_in(value)):
        line.ask(path, f"{name}: what {', '.join(unfilled)} hold is not known here; fill it in")
    for key, argument in _SAID_TWICE.items():
        said = config.get(key)
        if isinstance(said, int) and line.get(argument) not in (None, str(said)):
            field = "baseline.micro_batch_size" if argument == "--micro-batch-size" else "global_batch_size"
            line.ask(field, f"{line.written(argument)}, but {name} has {key} {said}: say which is right")
    if offloads := sorted({key.split(".")[1] for key in values if key.startswith("zero_optimization.offload_")}):
        line.note(f"{name}: {', '.join(offloads)}: stays as it is, but predictions do not know memory on the host")
    return config


def _kept(line: CommandLine) -> Arguments:
    """The user's other arguments, with questions for values that are not known."""
    kept = without(line.given, FROM_PLAN | FROM_MODEL | FROM_SHAPES | {"--local_rank", "--local-rank"})
    if not line.has(*WHOLE_VOCABULARY):
        kept = without(kept, (VOCAB_MULTIPLE,))
    if kept.get("--ckpt-format") == ("fsdp_dtensor",):
        kept = without(kept, ("--ckpt-format",))
    if line.through_deepspeed and line.has("--num-experts"):
        # Megatron-DeepSpeed's default interval is not that of trials.
        kept = {"--expert-interval": ("2",), **without(kept, ("--create-moe-param-group",))}
    unknown = {name: values for name, values in kept.items() if not all(map(is_filled_in, values))}
    if unused := left_out_of_trials(unknown):
        line.note(
            f"what {', '.join(unused)} hold is not known here; trials leave them out, an export has them as written"
        )
    asked = [question.text for question in line.questions]
    for name in [
        each for each in unknown if each not in unused and not any(line.written(each) in text for text in asked)
    ]:
        line.ask("", f"{line.written(name)}: fill in what it holds in workload.arguments")
    return kept
