"""Reads what starts torchtitan: a TOML file with the flags beside it (to 0.2.2), or flags over a function of Python
(from 0.3.0); and the configuration that torchtitan prints at its start: "Running with args" (a Python dict, to 0.2.0)
or "Running with configs" (JSON), where --job.print_args, --job.print_config or --debug.print_config asks for it.

Beside it, of every release (torchtitan/train.py, trainer.py, distributed/parallel_dims.py): the mesh that was built,
which says how many devices there were, and to 0.2.2 the model's own arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import (
    Arguments,
    CannotRead,
    Imported,
    Launch,
    Question,
    read_arguments,
    read_lines,
    render_lines,
)
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.torchtitan.config import flat, key_of, modern, nested, of_flags
from meshtune.runners.programs.dialects.torchtitan.keys import Key
from meshtune.runners.programs.dialects.torchtitan.models import CONFIG_FUNCTIONS
from meshtune.runners.programs.dialects.torchtitan.options import Release
from meshtune.runners.programs.dialects.torchtitan.reading import Reading
from meshtune.runners.untrusted_text import UnreadableText, read_json, read_literal, read_toml
from meshtune.search_spaces.checks import names_in, raising

_FILE = ("job", "config_file")
_MODULE, _FUNCTION = ("", "module"), ("", "config")
# A choice among kinds of configuration is a subcommand of tyro's.
_RECOMPUTE = "activation-checkpoint:"
# torchtitan's own shell script, what it takes from its environment, and what it starts by default (run_train.sh at
# v0.2.2 and 0.3.0: NGPU 8).
_SCRIPTS = ("run_train.sh", "run_llama_train.sh")
_DEVICES = "8"
# Two of these make a TOML file one of torchtitan's.
_SECTIONS = names_in("job model training parallelism activation_checkpoint experimental lr_scheduler metrics")


def parse(text: str) -> Imported:
    """What a configuration says: TOML, or flags, one per line. Raises CannotRead."""
    if not text.lstrip().startswith(("--", _RECOMPUTE)):
        return read_file_text("", text)
    lines = text.splitlines()
    kinds = [word for line in lines for word in line.split() if word.startswith(_RECOMPUTE)]
    with raising(CannotRead, "", UnreadableText):
        given, loose = read_lines(line for line in lines if not line.startswith(_RECOMPUTE))
    if loose:
        raise CannotRead(f"{' '.join(loose)[:100]} stands before the first flag")
    return _read_flags(given, kinds, None)


def is_file(name: str, text: str) -> bool:
    if not name.endswith(".toml"):
        return False
    try:
        return len(_SECTIONS & read_toml(text).keys()) >= 2
    except UnreadableText:
        return any(f"[{section}]" in text for section in ("parallelism", "activation_checkpoint"))


def read_file_text(name: str, text: str) -> Imported:
    """What a TOML file of torchtitan's says, on an unknown number of devices. Raises CannotRead."""
    imported = _read_file(_toml(name, text), {}, None)
    return replace(imported, notes=(FROM_WHERE, *imported.notes))


def is_program(launch: Launch) -> bool:
    """Whether a start is one of torchtitan's: its module or script, or a program that takes its configuration file."""
    script = launch.script.removeprefix("-m ")
    name = PurePosixPath(script).name
    if script == "torchtitan.train" or script.endswith("torchtitan/train.py") or name in _SCRIPTS:
        return True
    keys = {key_of(word.partition("=")[0])[0] for word in launch.words if word.startswith("--")}
    return _FILE in keys or (name == "train.py" and {_MODULE, _FUNCTION} <= keys)


def read_launch(launch: Launch) -> Imported:
    """What one start says, the file that it names overlaid by the flags beside it. Raises CannotRead."""
    launch = _of_shell_script(launch)
    kinds = [word for word in launch.words if word.startswith(_RECOMPUTE)]
    given, loose = read_arguments([word for word in launch.words if not word.startswith(_RECOMPUTE)])
    devices = None
    if launch.nodes is not None and launch.devices_per_node is not None:
        devices = launch.nodes * launch.devices_per_node
    files = [values[0] for flag, values in given.items() if key_of(flag)[0] == _FILE and values]
    if files:
        imported = _read_file(_toml_of(launch, files[-1]), given, devices)
    elif any(key_of(flag)[0] in (_MODULE, _FUNCTION) for flag in given):
        imported = _read_flags(given, kinds, devices)
    else:
        raise CannotRead(
            f"{launch.place}: torchtitan is started without --job.config_file (to 0.2.2) or --module and --config "
            f"(from 0.3.0); next: meshtune import its .toml file, or the log of a run with --job.print_config"
        )
    notes = list(launch.notes)
    if loose:
        notes.append(f"{launch.place}: {' '.join(map(as_written, loose))} stands before the first flag and is left out")
    if launch.setup:
        notes.append(f"{launch.place}: trials do not run {'; '.join(launch.setup)}: see runner.setup")
    workload = {**imported.workload, "directory": launch.directory or "."}
    if launch.env:
        workload["env"] = dict(launch.env)
    return replace(
        imported,
        workload=workload,
        nodes=launch.nodes,
        devices_per_node=launch.devices_per_node,
        notes=(*notes, *imported.notes),
    )


def _read_file(config: Mapping[str, Any], flags: Arguments, devices: int | None) -> Imported:
    """A TOML file and the flags that stand beside it. Raises CannotRead."""
    base = modern(flat(config))
    told = {key: value for key, value in of_flags(flags).items() if key != _FILE}
    reading = Reading({**flat(config), **told}, release=Release.TOML, devices=devices)
    imported = reading.imported()
    kept = nested({key: value for key, value in base.items() if key in reading.config})
    return replace(
        imported, workload={**imported.workload, **({"config": kept} if kept else {}), **_rest(flags, reading)}
    )


def _read_flags(flags: Arguments, kinds: Iterable[str], devices: int | None) -> Imported:
    """Flags over the function that --module and --config name, which is known where it is torchtitan's own. kinds: of
    recomputation, of which the last counts. Raises CannotRead."""
    said = of_flags(flags)
    names = said.pop(_MODULE, None), said.pop(_FUNCTION, None)
    function = CONFIG_FUNCTIONS.get(str(names[1]))
    if function and str(names[0]).removeprefix("torchtitan.models.") != function.model:
        function = None
    config: dict[Key, Any] = flat(function.sections()) if function else {}
    config |= said
    for kind in kinds:
        config["activation_checkpoint", "mode"] = kind.removeprefix(_RECOMPUTE)
    if function:
        config |= {("model", "name"): function.model, ("model", "flavor"): function.flavor}
    reading = Reading(config, release=Release.FLAGS, defaults=function is not None, devices=devices)
    imported = reading.imported()
    return replace(imported, workload={**imported.workload, **_rest(flags, reading)})


def _rest(flags: Arguments, reading: Reading) -> dict[str, Any]:
    """The flags that spoke of no plan, as the user has them."""
    own = {flag: values for flag, values in flags.items() if _stays(flag, reading)}
    return {"arguments": [as_written(line) for line in render_lines(own)]} if own else {}


def _stays(flag: str, reading: Reading) -> bool:
    key = key_of(flag)[0]
    return key != _FILE and (key in (_MODULE, _FUNCTION) or bool({key, *modern({key: 0})} & reading.config.keys()))


def _toml_of(launch: Launch, file: str) -> Mapping[str, Any]:
    """The file that a start names. Raises CannotRead."""
    if not is_known(file):
        raise CannotRead(
            f"{launch.place}: torchtitan is configured by {as_written(file)}, which is not known here. Next: the same "
            f"with the file's name in place, or meshtune import FILE.toml"
        )
    if file not in launch.files:
        raise CannotRead(
            f"{launch.place}: torchtitan is configured by {file}, which is not here. Next: meshtune import {file} "
            f"where it is, and look at the flags beside it: {as_written(' '.join(launch.words))[:200]}"
        )
    return _toml(file, launch.files[file])


def _toml(name: str, text: str) -> Mapping[str, Any]:
    try:
        return read_toml(text)
    except UnreadableText as error:
        raise CannotRead(f"{name or 'neither TOML nor flags: the text'} {error}") from None


def _of_shell_script(launch: Launch) -> Launch:
    """torchtitan's own shell script as the start that it makes of its environment."""
    if PurePosixPath(launch.script).name not in _SCRIPTS:
        return launch
    env = dict(launch.env)
    words = list(launch.words)
    taken = {name: env.pop(name, "") for name in ("CONFIG_FILE", "MODULE", "CONFIG", "NGPU", "LOG_RANK", "TRAIN_FILE")}
    if taken["CONFIG_FILE"]:
        words = ["--job.config_file", taken["CONFIG_FILE"], *words]
    elif taken["MODULE"] or taken["CONFIG"]:
        words = ["--module", taken["MODULE"] or "llama3", "--config", taken["CONFIG"] or "llama3_debugmodel", *words]
    devices = taken["NGPU"] or _DEVICES
    known = int(devices) if devices.isdecimal() and len(devices) < 6 else None
    return replace(
        launch,
        words=tuple(words),
        env=env,
        nodes=launch.nodes or 1,
        devices_per_node=launch.devices_per_node or known,
    )


# torchrun's --tee writes the rank before each line; torchtitan's logger its own head before each message.
_RANK = re.compile(r"^\[(?:rank|default)?(\d+)\]:", re.MULTILINE)
_DUMP = re.compile(r"Running with (?:args|configs): *(?=\{)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]" to 0.2.0, then "parallelism: pp=1, dp_replicate=1, ...".
_DIMS = re.compile(r"Building \d-D device mesh with (\[[^\]]*\]), (\[[\d, ]*\])")
_DEGREES = re.compile(r"Building device mesh with parallelism: ((?:\w+=\d+(?:, )?)+)")
_MESH = ("pp", "dp", "dp_replicate", "dp_shard", "dp_shard_mod_ep", "dp_shard_in_ep", "cp", "tp")
_TITAN = re.compile(r"\[titan\]|torchtitan|Building \S+ \S+ ?with (?:\{|\w+Args\()")
_MODEL_ARGUMENT = re.compile(
    r"[\"']?(dim|n_layers|n_heads|n_kv_heads|vocab_size|multiple_of|ffn_dim_multiplier)[\"']?[=:] ?([\d.]+)"
)
_MODEL = re.compile(r"Building (\S+) (\S+?) ?with (?=\{|\w*Args\()")
_MAX_DUMP = 200_000
# Sections that a trial keeps; the others it sets itself, or they say nothing of speed and memory.
_KEPT = names_in("""
    model training optimizer lr_scheduler activation_checkpoint compile experimental parallelism quantize
""")


# Of what says no folder.
FROM_WHERE = "set workload.directory to the folder that torchtitan is started in: its relative paths count from there"


def is_log(text: str) -> bool:
    return bool(
        _DUMP.search(text) and ("'parallelism'" in text or '"parallelism"' in text or "'experimental'" in text)
    ) or (bool(_TITAN.search(text)) and "Building" in text and "step:" in text)


def read_log(text: str) -> Imported:
    """What the run was that wrote this log. Raises CannotRead."""
    text = _COLOUR.sub("", _of_one_rank(text))
    dump = _DUMP.search(text)
    if dump is None:
        raise CannotRead(
            "a log of torchtitan without its configuration. Next: run it for a step with --job.print_config (0.2), "
            "--job.print_args (before) or --debug.print_config (0.3), and import that log; or import its .toml file"
        )
    document = _document(text[dump.end() : dump.end() + _MAX_DUMP])
    devices = _devices_in(text)
    spec = document.pop("model_spec", None)
    config = {key: value for key, value in flat(document).items() if value not in (None, "", [])}
    if isinstance(spec, Mapping):
        return _of_0_3(config, spec, _policy(document.get("activation_checkpoint")), devices)
    reading = Reading(config, release=Release.TOML, devices=devices, shapes=_shapes_in(text))
    imported = reading.imported()
    kept = nested(
        {
            key: value
            for key, value in reading.config.items()
            if key[0].partition(".")[0] in _KEPT or key == ("job", "custom_config_module")
        }
    )
    return _on(replace(imported, workload={**imported.workload, "config": kept}), devices)


def _of_0_3(config: dict[Key, Any], spec: Mapping[str, Any], policy: str, devices: int | None) -> Imported:
    config = {key: value for key, value in config.items() if key[0] != "activation_checkpoint"}
    config |= {("model", key): str(spec.get(key, "")) for key in ("name", "flavor")}
    config["activation_checkpoint", "mode"] = policy
    imported = Reading(config, release=Release.FLAGS, devices=devices).imported()
    asked = Question(
        "workload.arguments", "the log does not say --module and --config, nor which flags stood beside them"
    )
    return _on(replace(imported, questions=(*imported.questions, asked)), devices)


def _policy(fields: Any) -> str:
    """Which recomputation has these fields (distributed/activation_checkpoint.py at 0.3.0); the dump has no name."""
    if not isinstance(fields, Mapping):
        return "none"
    if "memory_budget" in fields:
        return "memory-budget"
    return "selective" if "force_recompute_mm_shapes_by_fqns" in fields else "full"


def _on(imported: Imported, devices: int | None) -> Imported:
    told = () if devices is None else (f"the log is of a run on {devices} devices; of how many nodes it does not say",)
    return replace(imported, notes=(*told, FROM_WHERE, *imported.notes))


def _of_one_rank(text: str) -> str:
    """The lines of the rank that says the configuration first, without the rank before them."""
    dump = _DUMP.search(text)
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
    if found := _DEGREES.search(text):
        degrees = dict(part.split("=") for part in found[1].rstrip(", ").split(", "))
        return prod(int(degrees.get(name, 1)) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    if found := _DIMS.search(text):
        names, sizes = re.findall(r"\w+", found[1]), re.findall(r"\d+", found[2])
        return prod(int(size) for name, size in zip(names, sizes, strict=False) if name in _MESH)
    return None


def _shapes_in(text: str) -> dict[str, Any] | None:
    """Fields of ModelSpec from the model's arguments that the log says; None for other models than Llama 2 and 3, and
    where the log says none."""
    found = _MODEL.search(text)
    if found is None or not found[1].startswith("llama") or found[1].startswith("llama4"):
        return None
    values: dict[str, float] = {}
    for name, value in _MODEL_ARGUMENT.findall(text[found.end() : found.end() + 2000]):
        values.setdefault(name, float(value))
    if not {"dim", "n_layers", "n_heads", "vocab_size"} <= values.keys():
        return None
    # FeedForward of torchtitan/models/llama3/model/model.py at v0.2.2: two thirds of four times the width, rounded up.
    width = int(2 * 4 * values["dim"] / 3)
    width = int(values.get("ffn_dim_multiplier", 1) * width)
    multiple = int(values.get("multiple_of", 256))
    return {
        "name": f"{found[1]}-{found[2]}".lower(),
        "layers": int(values["n_layers"]),
        "hidden": int(values["dim"]),
        "heads": int(values["n_heads"]),
        "kv_heads": int(values.get("n_kv_heads", 0)),
        "ffn": multiple * -(-width // multiple),
        "vocab": int(values["vocab_size"]),
    }
