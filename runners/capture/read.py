"""Reads what a launcher called: the one training that it starts, by the dialect of the program."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import PurePath

from meshtune.runners.capture.launch import launch_of, launcher_of, starts_a_program
from meshtune.runners.capture.session import Call, Captured
from meshtune.runners.capture.stand_in import BARRED
from meshtune.runners.dialects.base import CannotRead, Imported
from meshtune.runners.registry import load

_MAX_TOLD, _MAX_COMMAND = 20, 200
# Of Megatron's programs those that train something else than a GPT.
_OTHER_MODELS = ("bert", "t5", "ict", "retro", "vision", "vlm", "mamba", "biencoder", "multimodal")
# "module:function(Launch) -> Imported", loaded by name like the readers of texts.
_MEGATRON = "meshtune.runners.dialects.megatron.reader:read_launch"
_TITAN_FILE = ("--job.config_file", "--job.config-file")
_DEEPSPEED_FILE = ("--deepspeed", "--deepspeed_config", "--deepspeed-config")


def read_captured(captured: Captured, number: int = 0) -> Imported:
    """What the start says. number: which of several different ones, from 1; 0 where there is one. Raises CannotRead."""
    starts = list({_same(found): found for found in captured.calls if starts_a_program(found)}.values())
    if not starts:
        raise CannotRead(_nothing(captured))
    if captured.unset:
        asked = " ".join(f"--set {name}=VALUE" for name in captured.unset)
        raise CannotRead(
            f"the script reads {', '.join(captured.unset)}, which nothing sets, and bash takes as empty. "
            f"Next: the same command with {asked} (nothing after the `=` where it is to be empty)"
        )
    if number > len(starts) or (number == 0 and len(starts) > 1):
        listed = "".join(f"\n  {at}  {_written(found)}" for at, found in enumerate(starts[:_MAX_TOLD], 1))
        more = f"\n  and {len(starts) - _MAX_TOLD} more" if len(starts) > _MAX_TOLD else ""
        asked = f"there is no start {number}" if number else "several trainings are started"
        raise CannotRead(f"{asked}; choose one by --command N:{listed}{more}")
    chosen = number or 1
    imported = _read(starts[chosen - 1], f"start {chosen}")
    return replace(imported, notes=(*captured.notes, *imported.notes))


def _same(found: Call) -> tuple[object, ...]:
    return found.command, found.cwd


def _written(found: Call) -> str:
    text = shlex.join(found.command)
    return text if len(text) <= _MAX_COMMAND else f"{text[:_MAX_COMMAND]} ..."


def _read(found: Call, place: str) -> Imported:
    """By the program's arguments. Raises CannotRead, with what was recognised and what to do next."""
    launch = launch_of(found, place)
    names = {word.partition("=")[0] for word in launch.words}
    program = PurePath(launch.script).stem
    if launcher_of(found) == "accelerate":
        raise CannotRead(
            f"{place}: Accelerate starts {launch.script}, whose own arguments are not read yet. Next: write a spec "
            f"with `kind: command` (docs/how-to/workloads.md), or import its DeepSpeed settings: "
            f"meshtune import ds_config.json"
        )
    if file := _value_of(launch.words, _TITAN_FILE):
        raise CannotRead(
            f"{place}: torchtitan, configured by {file}; flags beside the file are not read yet. "
            f"Next: meshtune import {shlex.quote(file)} --format torchtitan, and compare: {_written(found)}"
        )
    if {"--num-layers", "--hidden-size"} <= names:
        if kind := next((kind for kind in _OTHER_MODELS if kind in program.lower().split("_")), ""):
            raise CannotRead(f"{place}: {launch.script} trains a {kind} model; meshtune knows Megatron's GPT alone")
        if launch.script.startswith("-m "):
            raise CannotRead(f"{place}: {launch.script}: the workload `megatron` needs the path of the program's file")
        file = _value_of(launch.words, _DEEPSPEED_FILE[1:])
        if file and file not in launch.files:
            raise CannotRead(
                f"{place}: DeepSpeed's settings, {file}, are not there; next: make the file, and capture again"
            )
        if '"auto"' in launch.files.get(file, ""):
            raise CannotRead(f"{place}: {file} has values `auto`, which Megatron fills in nowhere; next: write numbers")
        imported: Imported = load(_MEGATRON)(launch)
        if "offload" in launch.files.get(file, ""):
            told = f"{place}: {file} offloads to the host, which predictions do not know"
            imported = replace(imported, notes=(*imported.notes, told))
        return imported
    if file := _value_of(launch.words, _DEEPSPEED_FILE):
        raise CannotRead(
            f"{place}: {launch.script} with DeepSpeed's settings in {file}; its other arguments are not known. "
            f"Next: meshtune import {shlex.quote(file)} --format deepspeed"
        )
    raise CannotRead(
        f"{place}: {_written(found)} is no program that is known: neither Megatron's arguments (--num-layers, "
        f"--hidden-size), nor torchtitan's, nor a DeepSpeed file. Next: a spec with `kind: command` "
        f"(docs/how-to/workloads.md)"
    )


def _value_of(words: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The value of an option, "" where it has none."""
    for index, word in enumerate(words):
        name, joined, value = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        if name in names and (joined or (following and not following.startswith("-"))):
            return value if joined else following
    return ""


def _nothing(captured: Captured) -> str:
    """Why nothing was captured, and the next command."""
    for found in captured.calls:
        if found.tool in BARRED:
            script = next((word for word in found.words if not word.startswith("-")), "")
            given = f"`{_written(found)}` was met and not run"
            if found.tool in ("sbatch", "salloc", "qsub", "bsub"):
                return f"{given}. Next: meshtune import --capture -- bash {shlex.quote(script or 'SCRIPT')}"
            return f"{given}. Next: meshtune import --capture -- COMMAND, with the command that it would run there"
    seen = "".join(f"; met: {_written(found)}" for found in captured.calls[:_MAX_TOLD])
    return (
        f"the launcher started no training by torchrun, deepspeed, accelerate, srun, mpirun or python{seen}; it "
        f"{captured.end}. Programs called by their whole path (/opt/conda/bin/torchrun) are met only where they are "
        f"there. Next: write `torchrun` in a copy of the script, or read it as it stands: meshtune import SCRIPT"
    )
