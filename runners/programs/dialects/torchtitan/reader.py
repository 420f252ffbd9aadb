"""Reads what starts torchtitan: a TOML file with the flags beside it (to 0.2.2), or flags over a function of Python
(from 0.3.0); and the dump of its resolved configuration (log.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.programs.dialects.base import (
    Arguments,
    CannotRead,
    Imported,
    Launch,
    read_arguments,
    read_lines,
    render_lines,
)
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.torchtitan.config import flat, key_of, modern, nested, of_flags
from meshtune.runners.programs.dialects.torchtitan.keys import Key
from meshtune.runners.programs.dialects.torchtitan.log import FROM_WHERE
from meshtune.runners.programs.dialects.torchtitan.log import is_log as is_log
from meshtune.runners.programs.dialects.torchtitan.log import read_log as read_log
from meshtune.runners.programs.dialects.torchtitan.models import CONFIG_FUNCTIONS
from meshtune.runners.programs.dialects.torchtitan.options import Release
from meshtune.runners.programs.dialects.torchtitan.reading import Reading
from meshtune.runners.untrusted_text import UnreadableText, read_toml
from meshtune.search_spaces.checks import raising

_FILE = ("job", "config_file")
_MODULE, _FUNCTION = ("", "module"), ("", "config")
# A choice among kinds of configuration is a subcommand of tyro's.
_RECOMPUTE = "activation-checkpoint:"
# torchtitan's own shell script, what it takes from its environment, and what it starts by default (run_train.sh at
# v0.2.2 and 0.3.0: NGPU 8).
_SCRIPTS = ("run_train.sh", "run_llama_train.sh")
_DEVICES = "8"
# Two of these make a TOML file one of torchtitan's.
_SECTIONS = (
    "job",
    "model",
    "training",
    "parallelism",
    "activation_checkpoint",
    "experimental",
    "lr_scheduler",
    "metrics",
)


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
