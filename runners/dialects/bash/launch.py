"""Finds the training program that a launch script starts, and on how many devices: by torchrun, srun, deepspeed ..."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from meshtune.runners.dialects.base import CannotRead
from meshtune.runners.dialects.bash.expansion import Budget, as_written, is_known
from meshtune.runners.dialects.bash.lexer import NotBash
from meshtune.runners.dialects.bash.script import Command, Script, read_script
from meshtune.runners.dialects.launch import NOT_KEPT, SECRET, Launch

_PER_NODE = (
    *("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--gpus-per-node", "--ntasks-per-node"),
    *("--npernode", "-ppn", "--ppn"),
)
_NODES = ("--nnodes", "--num_nodes", "--nodes", "-N")
_SETUP = frozenset({"module", "ml", "source", ".", "conda", "micromamba", "mamba", "spack", "ulimit"})
_WHOLE = re.compile(r"[0-9]{1,9}")
_DIRECTIVE = re.compile(r"^#SBATCH\s+(-N|--[a-z-]+)[=\s]+(\S+)", re.MULTILINE)


def find_launch(text: str) -> Launch:
    """The program that a launch script starts; of several starts the last. Raises CannotRead."""
    budget = Budget()
    try:
        script = read_script(text, budget)
        starts = list(_starts(script.commands, budget))
    except NotBash as error:
        raise CannotRead(str(error)) from None
    if not starts:
        unfollowed = "".join(f"; {note}" for note in script.notes[:5])
        raise CannotRead(f"no line starts a Python program with arguments such as --num-layers 32{unfollowed}")
    command, before, program, words = starts[-1]
    line = command.line
    per_node, nodes = _number(before, _PER_NODE), _number(before, _NODES)
    asked = dict(_DIRECTIVE.findall(text))
    per_node = per_node or _directive(asked, ("--gpus-per-node", "--ntasks-per-node", "--gres"))
    setup, env, notes = _surroundings(script, command, {start[0].line for start in starts})
    different = [start[0].line for start in starts if start[3] != words]
    if different:
        notes.append(f"line {line}: this start is taken, that of line {', '.join(map(str, different))} is not")
    return Launch(
        script=program,
        words=words,
        place=f"line {line}",
        nodes=nodes or _directive(asked, ("--nodes", "-N")),
        devices_per_node=per_node,
        directory=_directory(script, line, notes),
        setup=tuple(setup),
        env=env,
        files=script.files,
        notes=(*script.notes, *notes),
    )


def _starts(
    commands: Sequence[Command], budget: Budget, *, nested: bool = False
) -> Iterator[tuple[Command, Sequence[str], str, tuple[str, ...]]]:
    """Every start of a program with arguments: the words before, the program, the words after.

    nested: the commands are those of a script in a word; a script in a word of that is not looked for.
    """
    for command in commands:
        places = [index for index, word in enumerate(command.words) if as_written(word).endswith(".py")]
        if places and any(word.startswith("--") for word in command.words[places[0] + 1 :]):
            words = command.words
            yield command, words[: places[0]], as_written(words[places[0]]), words[places[0] + 1 :]
            continue
        # bash -c "torchrun ...": a script in a word.
        for word in () if nested else command.words:
            if ".py" in word and any(blank in word for blank in " \n"):
                for _, before, program, rest in _starts(
                    read_script(as_written(word), budget).commands, budget, nested=True
                ):
                    yield command, (*command.words[:-1], *before), program, rest
    bare = [word for command in commands for word in command.words]
    if commands and all(command.words[0].startswith("--") for command in commands):
        yield commands[0], (), "", tuple(bare)


def _number(words: Sequence[str], names: Sequence[str]) -> int | None:
    """The number that the last of these flags says, None where none says one."""
    found = None
    for word, following in pairwise([*words, ""]):
        name, _, value = word.partition("=")
        if name in names and _WHOLE.fullmatch(value or following):
            found = int(value or following)
    return found


def _directive(asked: Mapping[str, str], names: Sequence[str]) -> int | None:
    """What a line such as `#SBATCH --gpus-per-node=a100:8` asks for."""
    values = (asked[name].rpartition(":")[2] for name in names if name in asked)
    return next((int(value) for value in values if _WHOLE.fullmatch(value)), None)


def _surroundings(
    script: Script, start: Command, starts: Collection[int]
) -> tuple[list[str], dict[str, str], list[str]]:
    """What sets the environment up before the start, and what the program finds in it; what is left out is noted."""
    setup, env, notes = list[str](), dict[str, str](), list[str]()
    for command in script.commands:
        first = command.words[0]
        if command.line >= start.line or command.line in starts or first == "cd":
            continue
        if first not in _SETUP:
            notes.append(f"line {command.line}: `{first}` is not run by trials")
        elif all(map(is_known, command.words)):
            setup.append(shlex.join(command.words))
        else:
            notes.append(f"line {command.line}: `{command.written}` holds what is not known here, and is left out")
    own = {name: (value, start.line) for name, value in start.env.items()}
    for name, (value, at) in {**script.exported, **own}.items():
        if name in NOT_KEPT:
            continue
        if SECRET.search(name):
            notes.append(f"line {at}: the value of {name} is not copied: it may be a secret")
        elif is_known(value):
            env[name] = value
        else:
            notes.append(f"line {at}: the value of {name} is not known here; fill it in under workload.env")
    return setup, env, notes


def _directory(script: Script, line: int, notes: list[str]) -> str:
    """Where the last `cd` before the start leads."""
    for command in reversed(script.commands):
        if command.words[0] == "cd" and command.line < line and len(command.words) == 2:
            if is_known(command.words[1]):
                return command.words[1]
            notes.append(f"line {command.line}: where `{command.written}` leads is not known here")
            break
    return ""
