"""Reads a start of a script of Hugging Face's Trainer, or of any script under `accelerate launch`, as a campaign whose
trials run that script unchanged: `python -m meshtune.runners.report` adds the callback that times its steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from meshtune.runners.programs.accelerate.special import YAML_FILE, quoted, read_launcher, words_of
from meshtune.runners.programs.accelerate.special import is_file as is_file_of_accelerate
from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.deepspeed.options import TABLE as DEEPSPEED
from meshtune.runners.programs.dialects.base import (
    CannotRead,
    Imported,
    Launch,
    Question,
    overlaid,
    read_arguments,
    value_of,
)
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.call import launcher_of
from meshtune.runners.programs.dialects.config_import import literal, of_plan, read_mapping
from meshtune.runners.programs.dialects.launcher_options import whole
from meshtune.runners.programs.plain.script import script_of
from meshtune.runners.programs.transformers.special import DS_FILE, profile, rollout
from meshtune.runners.programs.transformers.words import TABLE, TrainerReading, reading_of, start_of
from meshtune.runners.programs.transformers.words import is_program as is_program

# Steps before those that are timed, and these; and of reinforcement learning, whose steps take minutes.
_STEPS, _GENERATED = (8, 12), (2, 4)
_RUNNER = "meshtune.runners.report"
_DEGREES = ("tp", "pp", "cp")
_PASSES = {"micro_batch_size": "micro-batch", "grad_accum_steps": "accumulation"}


def read_launch(launch: Launch) -> Imported:
    """What a start says. Raises CannotRead."""
    reading = reading_of(launch)
    if reading.variant == "own" and any(word.endswith((".yaml", ".yml")) for word in reading.loose):
        told = f"{launch.place}: {as_written(launch.script)} takes its arguments from {as_written(reading.loose[0])}"
        next_step = "a spec with `kind: command` and that file under `configs` (docs/how-to/huggingface.md)"
        raise CannotRead(f"{told}, which is not read. Next: {next_step}")
    configs: dict[str, Any] = {}
    if launcher_of(launch.launcher) == "accelerate":
        # A program whose own file says what shards, and in which format, where no word of the launcher does.
        shards = words_of(launch.launcher).keys() & TABLE.words("trial.shards")
        if reading.table.lists["program"].get("shards", False) and not shards:
            told = "trials start their ranks without Accelerate's launcher"
            reading.note(f"{told}, its words and its default_config.yaml")
        else:
            configs = _read_launcher(reading)
    reading.table.read(reading)
    reading.table.remark(reading)
    _batch(reading)
    if reading.fields.get("stage") == "generated":
        rollout(reading)
    workload = _workload(reading, configs)
    said = {name: reading.get(name) for name in reading.given}
    # Knobs of the program, where its script is known to read all arguments, and of DeepSpeed's file.
    program = reading.table.lists["program"]
    known = reading.variant != "trainer" or re.search(program["parser"], script_of(launch).text)
    own = program.get(reading.fields.get("stage"), program.get("catalogs", "")).split() if known else []
    catalogs = (*own, *(DEEPSPEED.words("program.catalogs") if reading.sharding.settings is not None else ()))
    return reading.imported(workload, space=_space(reading), catalogs=catalogs, given=said)


def _read_launcher(reading: TrainerReading) -> dict[str, Any]:
    """Accelerate's words and file. The files that trials have of it. Raises CannotRead."""
    words = {**words_of(reading.launch.launcher), **reading.launcher}
    name = (words.pop("accelerate_config", None) or words.get("config_file") or ("",))[0]
    shipped = TABLE.lists["trl"]["shipped"]
    of_trl = None if name in reading.launch.files else re.fullmatch(shipped["file"], name)
    known = TABLE.lists["trl"]["accelerate_configs"].get(of_trl[1] if of_trl else name)
    if known:
        words.pop("config_file", None)
        if of_trl:
            reading.ask("", f"{as_written(name)}: {shipped['ask']}")
    elif name:
        words["config_file"] = (name,)
    reading.sharding = read_launcher(reading, words, reading.launch.files, known)
    return {YAML_FILE: {"format": "yaml", "base": known}} if known else {}


def read_file_text(name: str, text: str) -> Imported:
    """What such a configuration says. Of Accelerate's the script and its arguments are asked for. Raises CannotRead."""
    if start := start_of(name, text):
        return read_launch(start)
    launch = Launch(
        script="train.py",
        words=(),
        place=name,
        files={name: text},
        launcher=("accelerate", "launch", "--config_file", name),
    )
    imported = read_launch(launch)
    told = f"{name} does not say which script it is for: write its path in place of train.py, and its arguments"
    return replace(imported, questions=(Question("", told), *imported.questions))


def is_file(name: str, text: str) -> bool:
    return is_file_of_accelerate(name, text) or start_of(name, text) is not None


def _batch(reading: TrainerReading) -> None:
    """Devices, by the launcher's own words first, and the batch."""
    fields, launch = reading.fields, reading.launch
    ranks = whole(str(reading.get("num_processes")))
    nodes = whole(str(reading.get("num_machines") or ("1" if reading.sharding.head else "")))
    if nodes and ranks and ranks % nodes == 0:
        fields |= {"nodes": nodes, "devices_per_node": ranks // nodes}
    else:
        fields |= {"nodes": launch.nodes or nodes, "devices_per_node": launch.devices_per_node}
    fields |= {name: fields.get(name, 1) for name in _DEGREES}
    # Of one rank every stage is stage 0; others have the one that the words say.
    reading.kept |= {name: fields[name] for name in ("zero_stage",) if fields.get(name) is not None}
    solve(reading, {})
    if reading.variant == "own":
        _ask_own(reading)
    known = "global_batch_size" in fields or reading.is_asked("global_batch_size")
    if None in (fields["nodes"], fields["devices_per_node"]) and not known:
        passes = " * ".join(str(fields.get(name, word)) for name, word in _PASSES.items())
        told = f"sequences per step are {passes} * those (micro-batch * accumulation * processes)"
        reading.ask("global_batch_size", f"it is not known on how many processes it starts: {told}")
    for name in _DEGREES:
        if fields[name] == 1:
            del fields[name]
    if "cp" not in fields and "context" in fields:
        reading.kept["context"] = fields.pop("context")


def _ask_own(reading: TrainerReading) -> None:
    """What a script that may be any says of its batch by no name that is known, and where a trial's values go."""
    fields, odd = reading.fields, reading.first(("--train_batch_size", "--batch_size"))
    if odd and "micro_batch_size" not in fields:
        told = "the sequences of one device's pass, or of a whole step? write those of a pass"
        reading.ask("baseline.micro_batch_size", f"{reading.written(odd)}: {told}")
    elif "micro_batch_size" not in fields:
        reading.complete("baseline.micro_batch_size", "--per_device_train_batch_size", 8)
    if "grad_accum_steps" not in fields:
        reading.complete("global_batch_size", "--gradient_accumulation_steps", 1)
    told_by = set(map(str, reading.table.told(reading, reading)[0].values()))
    wanted = ("{micro_batch_size}", "{grad_accum_steps}", *(() if reading.has("--max_steps") else ("{steps}",)))
    places = ", ".join(place for place in wanted if place not in told_by)
    where = f"write {places} in their places in workload.command" if places else "look at workload.command"
    script = f"whether {reading.launch.script} is a script of the Trainer is not known"
    fixed = ", write what it recomputes under workload.fixed too" * reading.is_asked("baseline.recompute")
    where += f", take its folders of checkpoints out{fixed}"
    reading.ask("", f"{script}: {where}, and correct tp, pp and cp where it sets them; {_RUNNER} reports its steps")


def _workload(reading: TrainerReading, configs: Mapping[str, Any]) -> dict[str, Any]:
    """The spec's section: a text for the shell, in which the plan's values have their places."""
    launch, sharding, certain = reading.launch, reading.sharding, reading.variant != "own"
    lists, cycle = reading.table.lists, reading.fields.get("training.rollout.updates")
    # The first step of a cycle generates for all: whole ones are timed, and their mean is a step's.
    warmup, timed = (ceil(steps / (cycle or 1)) * (cycle or 1) for steps in (_GENERATED if cycle else _STEPS))
    trial, log = lists["trial"], lists.get("log", {})
    gone = reading.own.keys() & reading.table.words("trial.left_out") if certain else set()
    of_plans = reading.table.names_of("plan") | reading.table.words("trial.of_plan")
    kept = {name: values for name, values in reading.own.items() if name not in gone & of_plans}
    if unknown := [name for name, values in kept.items() if not all(map(is_known, values[:1]))]:
        reading.ask("", f"what {', '.join(unknown)} hold is not known here: write it in workload.command")
    if named := sorted(name for name in gone if name.startswith(("--save", "--eval"))):
        reading.note(f"trials take {warmup + timed} steps without {', '.join(named)}")
    module, script = ("-m ", launch.script[3:]) if launch.script.startswith("-m ") else ("", launch.script)
    places = reading.table.told(reading, reading)[0]
    words = read_arguments(f"{trial['words']} {trial.get('more', '')}".split() if certain else [])[0]
    alone = (
        {"--max_steps": "{steps}"} if not certain and "--max_steps" in kept else dict.fromkeys(sorted(gone - of_plans))
    )
    alone |= {name: value_of(values) for name, values in words.items() if not of_plan(values)}
    config, loose = lists["program"].get("config", ""), reading.loose
    staged = '"$@"' if sharding.stages else ""
    if config and loose[:1] and loose[0] in launch.files:
        base = read_mapping(loose[0], launch.files[loose[0]])
        removed = [key for key in trial["removed"].split() if base.get(key) is not None]
        plans = {key: value for key, value in trial["set"].items() if of_plan(value)}
        told = {key: value for key, value in trial["set"].items() if key not in plans}
        alone_there = {**dict.fromkeys(removed), **told}
        configs = {**configs, config: {"format": "yaml", "base": base, "set": plans, "trial": alone_there}}
        reading.note(f"trials have {loose[0]} without {', '.join(removed)}")
        own = [f"{{directory}}/{config}", *map(quoted, loose[1:])]
    else:
        own = list(map(quoted, loose))
    # Words that may be none stand behind no option, whose they would be.
    own += [*(["$recompute"] if reading.tells_recompute else []), *([staged] if sharding.of_script else [])]
    for name, values in kept.items():
        place = places.get(name)
        if name not in sharding.script:
            own += [name, place] if isinstance(place, str) else [name, *map(quoted, values)]
    own += [word for name, values in words.items() if of_plan(values) for word in (name, *values)]
    own += sharding.script
    head = (*sharding.head, "" if sharding.of_script else staged) if sharding.head else ("python3",)
    program = ("" if log else f"-m {_RUNNER}", f"{module}{quoted(script)}", *own)
    # `sh` has no `source`.
    setup = [literal(re.sub(r"^source ", ". ", line)) for line in launch.setup]
    lines = [*setup, *_choices(reading), " ".join(filter(None, ("exec", *head, *program)))]
    found: dict[str, Any] = {
        "kind": "command",
        "command": "\n".join(lines),
        **({"trial_arguments": alone} if alone else {}),
        "working_directory": launch.directory or ".",
        # Accelerate's launcher starts the ranks of its node.
        "start": "node" if sharding.head else "device",
        "framework": profile(reading, trial.get("framework", sharding.framework)),
        "dtype": reading.fields.get("dtype"),
        "steps": warmup + timed,
        "warmup_steps": warmup,
    }
    files = dict(configs)
    if sharding.settings:
        settings = {key: text for key, text in TABLE.lists["settings"].items() if text != "{zero_stage}"}
        told = settings if sharding.fixed else TABLE.lists["settings"]
        files[DS_FILE] = {"format": "json", "base": overlaid({}, sharding.settings), "set": dict(told)}
    env = {name: literal(value) for name, value in launch.env.items()}
    parts = {"env": env, "configs": files, "fixed": _fixed(reading), "log": dict(log)}
    return found | {name: value for name, value in parts.items() if value}


def _choices(reading: TrainerReading) -> list[str]:
    """Lines that turn the plan's words into the program's."""
    found = []
    if reading.tells_recompute:
        words = reading.table.lists["trial"]["recompute"].items()
        cases = "".join(f" {value}) recompute='{text}';;" for value, text in words)
        found.append(f"case {{recompute}} in{cases} *) echo 'no such recomputation' >&2; exit 2;; esac")
    if stages := reading.sharding.stages:
        cases = "".join(f" {stage}) set -- {' '.join(words)};;" for stage, words in stages.items())
        found.append(f"case {{zero_stage}} in{cases} *) echo 'no such sharding' >&2; exit 2;; esac")
    return found


def _fixed(reading: TrainerReading) -> dict[str, Any]:
    """The parts of the plan that the command is not told."""
    told = {
        "zero_stage": not reading.sharding.fixed,
        "micro_batch_size": reading.sharding.settings is not None,
        "recompute": reading.tells_recompute,
        "zero_group": "{zero_groups}" in reading.sharding.head,
    }
    said = {name: reading.fields[name] for name in ("context",) if name in reading.fields}
    kept = {**reading.table.told(reading, reading)[1], **said, **reading.kept}
    # What is asked of the plan is open here too.
    kept |= {name: None for name in kept if f"baseline.{name}" in reading.open}
    return {name: value for name, value in kept.items() if not told.get(name)}


def _space(reading: TrainerReading) -> dict[str, list[Any]]:
    """The values that the program takes, of the parts of a plan that it is told."""
    stage, sharding = reading.fields.get("zero_stage"), reading.sharding
    stages = sorted(sharding.stages) or ([reading.kept["zero_stage"]] if sharding.fixed and stage is not None else [])
    recomputes = list(reading.table.lists["trial"]["recompute"]) if reading.tells_recompute else []
    if not recomputes and reading.is_asked("baseline.recompute"):
        recomputes = ["none", "selective", "full"]
    found: dict[str, list[Any]] = {
        "zero_stage": stages,
        "recompute": recomputes,
        **{name: [reading.fields.get(name, 1)] for name in reading.alone},
    }
    return {name: values for name, values in found.items() if values}
