"""Reads what starts torchtitan: a TOML file with the flags beside it (to 0.2.2), or flags over a function of Python
(from 0.3.0); and the configuration that torchtitan prints at its start: "Running with args" (a Python dict, to 0.2.0)
or "Running with configs" (JSON), where --job.print_args, --job.print_config or --debug.print_config asks for it.

Beside it, of every release (torchtitan/train.py, trainer.py, distributed/parallel_dims.py): the mesh that was built,
which says how many devices there were, and to 0.2.2 the model's own arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.dialects.base import (
    Arguments,
    CannotRead,
    Imported,
    Launch,
    Question,
    read_arguments,
    render_lines,
)
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import flat, placed, text_of
from meshtune.runners.programs.torchtitan.configuration import (
    OLD,
    ONLY_0_2_0,
    SINCE_0_2_1,
    Configuration,
    modern,
    of_flags,
)
from meshtune.runners.programs.torchtitan.options import TABLE, Dtype, Release, key_of
from meshtune.runners.untrusted_text import UnreadableText, read_json, read_literal, read_toml

_PROGRAM: Mapping[str, Any] = TABLE.lists["program"]
_FILE, _MODULE, _FUNCTION = (_PROGRAM[name] for name in ("file", "module", "function"))
_SUBCOMMAND: str = _PROGRAM["subcommand"]
_DUMP: Mapping[str, Any] = TABLE.lists["dump"]
_MAX_DUMP = 200_000
_WARMUP_STEPS = 8
# torchrun's --tee writes the rank before each line; torchtitan's logger its own head before each message.
_RANK = re.compile(r"^\[(?:rank|default)?(\d+)\]:", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Of what says no folder.
_FROM_WHERE = "set workload.directory to the folder that torchtitan is started in: its relative paths count from there"


# Files and starts.
def is_file(name: str, text: str) -> bool:
    if not name.endswith(".toml"):
        return False
    try:
        return len(TABLE.words("program.sections") & read_toml(text).keys()) >= 2
    except UnreadableText:
        return any(f"[{section}]" in text for section in TABLE.words("program.own_sections"))


def read_file_text(name: str, text: str) -> Imported:
    """What a TOML file of torchtitan's says, on an unknown number of devices. Raises CannotRead."""
    imported = _read_file(name, text, {})
    return replace(imported, notes=(_FROM_WHERE, *imported.notes))


def is_program(launch: Launch) -> bool:
    """Whether a start is one of torchtitan's: its module or script, or a program that takes its configuration file."""
    script = launch.script.removeprefix("-m ")
    if re.fullmatch(f"{_PROGRAM['script']}|{_PROGRAM['shell_script']}", script):
        return True
    keys = {key_of(word.partition("=")[0])[0] for word in launch.words if word.startswith("--")}
    return _FILE in keys or (script.rpartition("/")[2] == "train.py" and {_MODULE, _FUNCTION} <= keys)


def read_launch(launch: Launch) -> Imported:
    """What one start says, the file that it names overlaid by the flags beside it. Raises CannotRead."""
    launch = _of_shell_script(launch)
    kinds = [word for word in launch.words if word.startswith(_SUBCOMMAND)]
    given, loose = read_arguments([word for word in launch.words if word not in kinds])
    file, *beside = next((values for flag, values in given.items() if key_of(flag)[0] == _FILE and values), ("",))
    if file:
        text = text_of(launch, file, "torchtitan is configured by", f": meshtune import {as_written(file)}")
        imported = _read_file(file, text, given, launch)
    elif any(key_of(flag)[0] in (_MODULE, _FUNCTION) for flag in given):
        imported = _read_flags(given, kinds, launch)
    else:
        raise CannotRead(
            f"{launch.place}: torchtitan is started without --job.config_file (to 0.2.2) or --module and --config "
            f"(from 0.3.0); next: meshtune import its .toml file, or the log of a run with --job.print_config"
        )
    notes = [f"{word} stands before the first flag and is left out" for word in filter(is_known, loose)]
    unread = [as_written(word) for word in (*loose, *beside) if not is_known(word)]
    told = f"{launch.place}: {' '.join(unread)} is not known here and may hold further flags: add them to"
    questions = (Question("", f"{told} workload.arguments, or none"),) if unread else ()
    if launch.setup:
        notes.append(f"trials do not run {'; '.join(launch.setup)}: see runner.setup")
    workload = {**imported.workload, "directory": launch.directory or ".", "env": dict(launch.env)}
    return replace(
        imported,
        workload={name: value for name, value in workload.items() if value != {}},
        questions=(*questions, *imported.questions),
        notes=(*launch.notes, *(f"{launch.place}: {note}" for note in notes), *imported.notes),
    )


def _of_shell_script(launch: Launch) -> Launch:
    """torchtitan's own shell script as the start that it makes of its environment."""
    if not re.fullmatch(_PROGRAM["shell_script"], launch.script):
        return launch
    others = {_PROGRAM["shell_file"], *_PROGRAM["shell_function"], *_PROGRAM["shell_devices"]}
    env = {name: value for name, value in launch.env.items() if name not in others | TABLE.words("program.shell_other")}
    words = list(launch.words)
    if file := launch.env.get(_PROGRAM["shell_file"]):
        words = [f"--{_FILE}", file, *words]
    elif any(launch.env.get(name) for name in _PROGRAM["shell_function"]):
        said = [launch.env.get(name) or default for name, default in _PROGRAM["shell_function"].items()]
        words = [f"--{_MODULE}", said[0], f"--{_FUNCTION}", said[1], *words]
    ((name, default),) = _PROGRAM["shell_devices"].items()
    devices = launch.env.get(name) or default
    known = int(devices) if devices.isdecimal() and len(devices) < 6 else None
    per_node = launch.devices_per_node or known
    return replace(launch, words=tuple(words), env=env, nodes=launch.nodes or 1, devices_per_node=per_node)


def _read_file(name: str, text: str, flags: Arguments, launch: Launch | None = None) -> Imported:
    """A TOML file and the flags that stand beside it. Raises CannotRead."""
    try:
        file = flat(read_toml(text))
    except UnreadableText as error:
        raise CannotRead(f"{name or 'the text'} {error}") from None
    config = _read({**file, **of_flags(flags)}, Release.TOML, launch=launch)
    return _imported(config, config=placed({}, config.own(file)), arguments=_rest(flags, config))


def _read_flags(flags: Arguments, kinds: Sequence[str], launch: Launch | None = None) -> Imported:
    """Flags over the function that --module and --config name, which is known where it is torchtitan's own. kinds: of
    recomputation, of which the last counts. Raises CannotRead."""
    said = of_flags(flags)
    module, name = str(said.get(_MODULE)).removeprefix("torchtitan.models."), str(said.get(_FUNCTION))
    function: Mapping[str, Any] = TABLE.lists["functions"].get(name, {})
    if function.get("model.name") != module:
        function = {}
    recompute = {"activation_checkpoint.mode": kinds[-1].removeprefix(_SUBCOMMAND)} if kinds else {}
    more = "" if function else f"the configuration function {as_written(name)}"
    config = _read({**function, **said, **recompute}, Release.FLAGS, more=more, launch=launch)
    return _imported(config, arguments=_rest(flags, config))


def _rest(flags: Arguments, config: Configuration) -> list[str]:
    """The flags that spoke of no plan, as the user has them."""
    own = config.own(of_flags(flags)).keys() - {_FILE}
    kept = {flag: values for flag, values in flags.items() if modern({key_of(flag)[0]: 0}).keys() & own}
    return list(map(as_written, render_lines(kept)))


# Settings.
def _read(
    settings: Mapping[str, Any],
    release: Release,
    *,
    more: str = "",
    launch: Launch | None = None,
    devices: int | None = None,
    shapes: Mapping[str, Any] | None = None,
) -> Configuration:
    """What settings say. shapes: fields of ModelSpec where they were read otherwise than by name and flavor. Raises
    CannotRead."""
    values = {**settings, **modern(settings)}
    given = {key: value for key, value in values.items() if value is not None and value not in ("", [])}
    old = tuple(key for key in settings if key in OLD)
    config = Configuration(given=given, release=release, more=more, devices=devices, old=old)
    config.fields |= {f"model.{field}": value for field, value in (shapes or {}).items()}
    if launch is not None:
        config.fields |= {"nodes": launch.nodes, "devices_per_node": launch.devices_per_node}
        config.devices = (launch.nodes or 0) * (launch.devices_per_node or 0) or None
    config.ask_for_strange_keys(settings)
    config.table.remark(config)
    if old:
        some = ", ".join(old[:5]) + (" ..." if len(old) > 5 else "")
        config.ask(
            "workload.release",
            f"this is for a torchtitan before 0.2 ({some}). Trials are written in the words of 0.2 and need it: "
            f"answer {Release.TOML} for 0.2.1 and 0.2.2, {Release.TOML_0_2_0} for 0.2.0; the baseline runs there, too",
        )
    config.table.read(config, "model")
    config.table.read(config, "plan", "other")
    _batch(config)
    _format(config)
    config.ask_for_the_function()
    return config


def _batch(config: Configuration) -> None:
    name = config.table.fields["global_batch_size"].names[0]
    alone = not config.has(name) and config.complete("global_batch_size", name, "local_batch_size * dp")
    solve(config, {"grad_accum_steps": config.micro_batches} if alone else {})
    fields = config.fields
    if alone and fields.get("global_batch_size") is None:
        config.note("global_batch_size is training.local_batch_size times the data-parallel ranks")
    rounds, rest = divmod(fields.get("grad_accum_steps") or config.micro_batches, config.micro_batches)
    if rest:
        each = f"local_batch_size({config.micro_batches * fields['micro_batch_size']}) * dp({fields.get('dp')})"
        config.ask("global_batch_size", f"{config.written(name)} is no multiple of {each}: which is right?")
    elif rounds > 1 and fields.get("pp") != 1:
        config.ask("", f"the pipeline runs {rounds} times per step; a plan's runs once, with more micro-batches")


def _format(config: Configuration) -> None:
    """Whether there is the mixed precision that is said (torchtitan 0.2, distributed/utils.py, maybe_enable_amp)."""
    ranks = [config.fields.get(axis) for axis in ("dp", "cp", "tp", "pp")]
    alone = ranks[:2] == [1, 1] and (ranks[2] or 1) * (ranks[3] or 1) > 1
    whole = config.get("training.dtype") == Dtype.BFLOAT16
    if alone and config.release.has_file and config.fields.get("dtype") == Dtype.BFLOAT16 and not whole:
        config.ask(
            "workload.dtype",
            "tensor or pipeline ranks without FSDP have no mixed precision: this run's products are float32. Answer "
            "float32, or bfloat16 for plans with FSDP",
        )


def _imported(config: Configuration, /, **own: Any) -> Imported:
    """own: the user's other settings, by option of the workload."""
    first = config.release.has_file and ONLY_0_2_0 & config.given.keys() and not SINCE_0_2_1 & config.given.keys()
    # A file of 0.2 has what 0.2.1 refuses, or is for 0.2.1 and 0.2.2.
    release = None if config.old else str(Release.TOML_0_2_0 if first else config.release)
    said = {"release": release, "dtype": config.fields.get("dtype"), "warmup_steps": _WARMUP_STEPS}
    return config.imported({"kind": "torchtitan", **said, **{name: value for name, value in own.items() if value}})


# Logs.
def is_log(text: str) -> bool:
    if re.search(_DUMP["begins"], text) and re.search(_DUMP["named"], text):
        return True
    return "Building" in text and "step:" in text and bool(re.search(_DUMP["program"], text))


def read_log(text: str) -> Imported:
    """What the run was that wrote this log. Raises CannotRead."""
    text = _COLOUR.sub("", _of_one_rank(text))
    dump = re.search(_DUMP["begins"], text)
    if dump is None:
        raise CannotRead(
            "a log of torchtitan without its configuration. Next: run it for a step with --job.print_config (0.2), "
            "--job.print_args (before) or --debug.print_config (0.3), and import that log; or import its .toml file"
        )
    document, devices = _document(text[dump.end() : dump.end() + _MAX_DUMP]), _devices_in(text)
    renamed: Mapping[str, str] = _DUMP["renamed"]
    settings = {renamed.get(key, key): value for key, value in flat(document).items() if value not in (None, "", [])}
    if isinstance(document.get(_DUMP["functions"]), Mapping):
        settings = {key: value for key, value in settings.items() if not key.startswith("activation_checkpoint.")}
        fields, kinds = document.get("activation_checkpoint"), _DUMP["recompute"].items()
        kind = next((name for name, field in kinds if field in fields), "full") if fields else "none"
        settings["activation_checkpoint.mode"] = kind
        config = _read(settings, Release.FLAGS, devices=devices)
        beside = "the log does not say --module and --config, nor which flags stood beside them"
        config.ask("workload.arguments", beside)
        imported = _imported(config)
    else:
        config = _read(settings, Release.TOML, devices=devices, shapes=_shapes_in(text))
        kept = TABLE.words("dump.kept")
        own = {key: value for key, value in config.own(settings).items() if {key, key.partition(".")[0]} & kept}
        imported = _imported(config, config=placed({}, own))
    told = () if devices is None else (f"the log is of a run on {devices} devices; of how many nodes it does not say",)
    return replace(imported, notes=(*told, _FROM_WHERE, *imported.notes))


def _of_one_rank(text: str) -> str:
    """The lines of the rank that says the configuration first, without the rank before them."""
    dump = re.search(_DUMP["begins"], text)
    head = _RANK.match(text, text.rfind("\n", 0, dump.start()) + 1) if dump else None
    if head is None:
        return text
    return "\n".join(line[head.end() - head.start() :] for line in text.splitlines() if line.startswith(head[0]))


def _document(text: str) -> dict[str, Any]:
    """The mapping that a text begins with. Raises CannotRead."""
    try:
        if text[1:].lstrip().startswith("'"):
            found = read_literal(text.partition("\n")[0])
        else:
            _, end = json.JSONDecoder().raw_decode(text)
            found = read_json(text[:end])
    except (ValueError, RecursionError) as error:
        raise CannotRead(f"the configuration in the log cannot be read: {shown(str(error))}") from None
    if not isinstance(found, dict):
        raise CannotRead("the configuration in the log is no mapping")
    return found


def _devices_in(text: str) -> int | None:
    """Ranks of the mesh that the log says, None where it says none."""
    pairs: Iterable[tuple[str, str]]
    if found := re.search(_DUMP["degrees"], text):
        pairs = re.findall(r"(\w+)=(\d+)", found[1])
    elif found := re.search(_DUMP["lists"], text):
        pairs = zip(re.findall(r"\w+", found[1]), re.findall(r"\d+", found[2]), strict=False)
    else:
        return None
    return prod(int(size) for name, size in pairs if name in TABLE.words("dump.mesh"))


def _shapes_in(text: str) -> dict[str, Any] | None:
    """Fields of ModelSpec from the model's arguments that the log says; None for other models than Llama 2 and 3, and
    where the log says none."""
    found = re.search(_DUMP["model"], text)
    if found is None or not found[1].startswith("llama") or found[1].startswith("llama4"):
        return None
    said = re.findall(_DUMP["argument"], text[found.end() : found.end() + 2000])
    values = {name: float(value) for name, value in reversed(said)}
    shapes = {field: int(values[name]) for name, field in _DUMP["shapes"].items() if name in values}
    if len(shapes.keys() - {"kv_heads"}) < len(_DUMP["shapes"]) - 1:
        return None
    # FeedForward of torchtitan/models/llama3/model/model.py at v0.2.2: two thirds of four times the width, rounded up.
    width = int(values.get("ffn_dim_multiplier", 1) * int(2 * 4 * values["dim"] / 3))
    multiple = int(values.get("multiple_of", 256))
    return {"name": f"{found[1]}-{found[2]}".lower(), "ffn": multiple * -(-width // multiple), **shapes}
