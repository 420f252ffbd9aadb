"""A captured call as the launch that dialects read: its program, arguments, devices and environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from meshtune.runners.capture.session import Call
from meshtune.runners.capture.stand_in import LAUNCH_MODULES, LAUNCHERS, PYTHONS
from meshtune.runners.dialects.base import CannotRead
from meshtune.runners.dialects.launch import NOT_KEPT, SECRET, Launch

_WHOLE = re.compile(r"[1-9][0-9]{0,8}")
_PER_NODE: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("--nproc_per_node", "--nproc-per-node"),
    "deepspeed": ("--num_gpus",),
    "srun": ("--ntasks-per-node",),
    "mpirun": ("-ppn", "--ppn", "-npernode", "--npernode", "-N"),
}
_NODES: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("--nnodes",),
    "deepspeed": ("--num_nodes",),
    "srun": ("--nodes", "-N"),
    "mpirun": (),
}
_RANKS = {"srun": ("--ntasks", "-n"), "mpirun": ("-np", "-n", "--np")}


def starts_a_program(found: Call) -> bool:
    """Whether a call would have started a training; `accelerate config` and `torchrun --help` would not."""
    return found.tool in (*LAUNCHERS, *PYTHONS) and _program(found.words) is not None


def launcher_of(found: Call) -> str:
    """The tool that starts the processes, by its stand-in's name: of torch.distributed.run, torchrun."""
    module = next((after for word, after in pairwise(found.words) if word == "-m"), "")
    if found.tool in PYTHONS and module in LAUNCH_MODULES:
        return {"torch": "torchrun", "deepspeed": "deepspeed", "accelerate": "accelerate"}.get(
            module.partition(".")[0], found.tool
        )
    return found.tool


def launch_of(found: Call, place: str) -> Launch:
    """Raises CannotRead."""
    program = _program(found.words)
    if program is None:
        raise CannotRead(f"{place}: {' '.join(found.command)[:300]} names no Python program")
    at, script = program
    before, words = found.words[:at], found.words[at + 1 :]
    notes = list[str]()
    nodes, per_node = _devices(launcher_of(found), before, found)
    if nodes is None or per_node is None:
        missing = "nodes" if nodes is None else "ranks per node"
        notes.append(f"{place}: the number of {missing} is not said; give it with --set, or name a cluster")
    if not script.startswith("-m ") and not (Path(found.cwd) / script).is_file():
        notes.append(f"{place}: {script} is not in {found.cwd} on this machine; check workload.directory")
    return Launch(
        script=script,
        words=words,
        place=place,
        nodes=nodes,
        devices_per_node=per_node,
        directory=found.cwd,
        setup=(),
        env=_environment(found, place, notes),
        files=found.files,
        notes=tuple(notes),
    )


def _program(words: Sequence[str]) -> tuple[int, str] | None:
    """The place and name of the program in a launcher's words."""
    for index, word in enumerate(words):
        if word.endswith(".py"):
            return index, word
        if word in ("-m", "--module") and index + 1 < len(words) and words[index + 1] not in LAUNCH_MODULES[:-1]:
            return index + 1, f"-m {words[index + 1]}"
    return None


def _devices(launcher: str, before: Sequence[str], found: Call) -> tuple[int | None, int | None]:
    """Nodes and ranks per node. torchrun's own defaults are one each; the other launchers take what they find."""
    per_gpu = _whole(found.environment.get("SLURM_GPUS_ON_NODE", ""))
    if launcher == "torchrun":
        said, nodes = _value(before, _PER_NODE["torchrun"]), _value(before, _NODES["torchrun"])
        return (
            1 if nodes is None else _whole(nodes),
            1 if said is None else per_gpu if said in ("gpu", "auto") else _whole(said),
        )
    if launcher == "deepspeed":
        said, nodes = _value(before, _PER_NODE["deepspeed"]), _value(before, _NODES["deepspeed"])
        return _whole(nodes or ""), _whole(said or "")
    if not found.under:
        return (1, 1) if launcher in PYTHONS else (None, None)
    tool, options = found.under[-1]
    kind = "srun" if tool == "srun" else "mpirun"
    here = found.environment if kind == "srun" else {}
    nodes_said = _whole(_value(options, _NODES[kind]) or here.get("SLURM_NNODES", ""))
    ranks = _whole(_value(options, _RANKS[kind]) or "")
    per_node = _whole(_value(options, _PER_NODE[kind]) or "")
    if kind == "mpirun" and per_node and ranks and ranks % per_node == 0:
        return ranks // per_node, per_node
    if per_node is None and ranks is None:
        per_node, ranks = _whole(here.get("SLURM_NTASKS_PER_NODE", "")), _whole(here.get("SLURM_NTASKS", ""))
    if per_node is None and ranks is not None and nodes_said is not None and ranks % nodes_said == 0:
        per_node = ranks // nodes_said
    return nodes_said, per_node


def _value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """What the last of these options says, None where none is there."""
    value = None
    for word, following in pairwise([*words, ""]):
        name, joined, inner = word.partition("=")
        if name in names:
            value = inner if joined else following
        elif short := next((one for one in names if len(one) == 2 and re.fullmatch(rf"{one}[0-9]+", word)), ""):
            value = word.removeprefix(short)
    return value


def _whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _environment(found: Call, place: str, notes: list[str]) -> dict[str, str]:
    """What the launcher set for the program, but for what a launcher or meshtune sets anew for each start."""
    kept = {}
    for name, value in found.changed.items():
        if name in NOT_KEPT or not name.isidentifier() or name.startswith(("SLURM_", "OMPI_", "PMI_")):
            continue
        if SECRET.search(name):
            notes.append(f"{place}: the value of {name} is not copied: it may be a secret")
        else:
            kept[name] = value
    return kept
