"""Reads starts and logs of Megatron: model, plan, number format, and the user's other arguments, which stay.

Nothing is guessed: what is neither said nor Megatron's default for certain is an open question (decision 0036)."""

from __future__ import annotations

from meshtune.runners.dialects.base import CannotRead, Imported
from meshtune.runners.dialects.bash.launch import find_launch
from meshtune.runners.dialects.launch import Launch
from meshtune.runners.dialects.megatron.command_line import CommandLine, read_command_line
from meshtune.runners.dialects.megatron.log_dump import Dump, find_dump
from meshtune.runners.dialects.megatron.log_dump import is_log as is_log
from meshtune.runners.dialects.megatron.read_model import read_model
from meshtune.runners.dialects.megatron.read_plan import derived, read_plan
from meshtune.runners.dialects.megatron.read_workload import TIME_LIMIT_S, read_workload
from meshtune.runners.dialects.megatron.recognition import is_program as is_program
from meshtune.runners.dialects.megatron.recognition import refuse_other_models


def parse(text: str) -> Imported:
    """What a launch script, or a file of arguments, says. Raises CannotRead."""
    return read_launch(find_launch(text))


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
    dump: Dump = find_dump(text)
    refuse_other_models(dump.launch)
    line = read_command_line(dump.launch, dump.devices)
    for question in dump.questions:
        line.ask(*question)
    for note in dump.notes:
        line.note(note)
    return _imported(line)


def _imported(line: CommandLine) -> Imported:
    plan = read_plan(line)
    model = read_model(line)
    batch, found = derived(line, plan)
    workload = read_workload(line)
    line.note(f"trials may take {TIME_LIMIT_S // 60} minutes: a start of Megatron takes 2 to 10 on a cluster")
    return Imported(
        workload=workload,
        model=model,
        plan={**plan, **found},
        global_batch_size=batch,
        nodes=line.launch.nodes,
        devices_per_node=line.launch.devices_per_node,
        trial={"time_limit_s": TIME_LIMIT_S},
        questions=tuple(dict.fromkeys(line.questions)),
        notes=tuple(dict.fromkeys(line.notes)),
    )
