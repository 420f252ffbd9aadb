"""How jobs are told of knobs (variables, arguments, keys of a configuration, options, placeholders), and why one cannot
be: the one place for every workload. Knobs that are inactive, or at the value that is omitted, are told nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.search_spaces.checks import Problem, did_you_mean
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import KnobValue, word
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.plan import Plan

# What tells a process of a job which one it is, and where the others are.
_OF_THE_GANG = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT")
_OURS = "MESHTUNE_"


def variables(knobs: Iterable[Knob], plan: Plan) -> dict[str, str]:
    """The variables of a job's environment that the plan's knobs set."""
    return {str(knob.env): word(text) for knob, text in _told(knobs, plan, "env")}


def arguments(knobs: Iterable[Knob], plan: Plan) -> list[str]:
    """The words of the command line that its knobs add."""
    told = [knob for knob, _ in _told(knobs, plan, "argument")]
    return [text for knob in told for text in knob.arguments(plan.knobs[knob.name], plan.world_size)]


def keys(knobs: Iterable[Knob], plan: Plan, file: str = "") -> dict[str, KnobValue]:
    """The keys of its configuration that its knobs set, as the knobs name them, but for the name of `file`."""
    return {str(knob.config).removeprefix(f"{file}:"): value for knob, value in _told(knobs, plan, "config")}


def options(knobs: Iterable[Knob], plan: Plan) -> dict[str, KnobValue]:
    """The workload's options that its knobs set."""
    return {str(knob.option): value for knob, value in _told(knobs, plan, "option")}


def placeholders(request: JobRequest) -> dict[str, KnobValue]:
    """What stands for each of its knobs where the command has a placeholder of that name, whatever tells it beside."""
    own = request.plan.knobs
    told = ((knob.name, knob.told(own[knob.name])) for knob in request.knobs if knob.name in own)
    return {name: value for name, value in told if value is not None}


def _told(knobs: Iterable[Knob], plan: Plan, way: str) -> Iterator[tuple[Knob, KnobValue]]:
    for knob in knobs:
        if knob.way != way or knob.name not in plan.knobs:
            continue
        if (told := knob.told(plan.knobs[knob.name])) is not None:
            yield knob, told


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What jobs of a workload can be told of beside their plan.

    variables: those that are set for another reason, by name with what sets them. arguments: those that stand in the
    command line, alike; None: it takes none. plain: the name of an argument, as the program tells two apart. example:
    of one, where each begins with its name. files: the configuration files by name, each with its dotted keys that are
    set, alike. options: by name, why a value is none; placeholders: that the workload's texts have; None: they can have
    none."""

    workload: str
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] | None = None
    plain: Callable[[str], str] = str
    example: str = ""
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    options: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    placeholders: Iterable[str] | None = None


def problems(knobs: KnobSet, telling: Telling) -> list[Problem]:
    """Why knobs cannot be told, all of them, by the knob's name and key."""
    return [problem for knob in knobs if knob.way in _WAYS for problem in _WAYS[knob.way](knob, telling)]


def names_of(argument: str) -> list[str]:
    """The names in an argument's words: of the first one, and of each that begins with a dash, up to a `=`."""
    words = [word.partition("=")[0].lstrip("+") for word in argument.split()]
    named = [word for at, word in enumerate(words) if at == 0 or word.startswith("-")]
    return [word for word in named if "{" not in word]


def find_file(key: str, files: Iterable[str]) -> tuple[str, str] | None:
    """The configuration file that a knob's key means, and the key in it: KEY where there is one file, else FILE:KEY."""
    named = list(files)
    for name in named:
        if key.startswith(f"{name}:"):
            return name, key[len(name) + 1 :]
    return (named[0], key) if len(named) == 1 and ":" not in key else None


def _of_variable(knob: Knob, telling: Telling) -> Iterator[Problem]:
    name = str(knob.env)
    if name.startswith(_OURS) or name in _OF_THE_GANG:
        yield Problem(f"{knob.name}.env", f"{name} is set by meshtune for every process of a job")
    elif name in telling.variables:
        yield Problem(f"{knob.name}.env", f"{name} is set by {telling.variables[name]}, too")


def _of_argument(knob: Knob, telling: Telling) -> Iterator[Problem]:
    if telling.arguments is None:
        yield Problem(f"{knob.name}.argument", f"the workload {telling.workload} takes no arguments")
        return
    standing = {telling.plain(each): place for each, place in telling.arguments.items()}
    for name in names_of(str(knob.argument)):
        if (place := standing.get(telling.plain(name))) is not None:
            yield Problem(f"{knob.name}.argument", f"{name} already stands in {place}")
    if telling.example and not str(knob.argument).startswith("--"):
        yield Problem(f"{knob.name}.argument", f"must begin with the name of an argument, such as {telling.example}")


def _of_key(knob: Knob, telling: Telling) -> Iterator[Problem]:
    path, key = f"{knob.name}.config", str(knob.config)
    found = find_file(key, telling.files)
    if not telling.files:
        yield Problem(path, f"the workload {telling.workload} writes no configuration file here")
    elif found is None:
        yield Problem(path, f"{key!r} says no file: give FILE:KEY with one of {', '.join(telling.files)}")
    else:
        file, own = found
        for key, place in telling.files[file].items():
            if overlap(key, own):
                yield Problem(path, f"{own} of {file} is set by {place}, too{'' if key == own else f' ({key})'}")
                break


def overlap(one: str, other: str) -> bool:
    """True where one dotted key is the other, or holds it."""
    shorter, longer = sorted((one, other), key=len)
    return longer == shorter or longer.startswith(f"{shorter}.")


def _of_option(knob: Knob, telling: Telling) -> Iterator[Problem]:
    name = str(knob.option)
    if not telling.options:
        yield Problem(
            f"{knob.name}.option", f"is for the built-in trainer (workload torch), not for {telling.workload}"
        )
    elif name not in telling.options:
        known = did_you_mean(name, telling.options)
        yield Problem(f"{knob.name}.option", f"the workload {telling.workload} has no option {name!r}; {known}")
    else:
        told = (text for value in knob.values if (text := knob.told(value)) is not None)
        for value in told:
            if unfit := telling.options[name](value):
                yield Problem(f"{knob.name}.values", f"{word(value)} is no value of the option {name}: {unfit}")


def _of_placeholder(knob: Knob, telling: Telling) -> Iterator[Problem]:
    if telling.placeholders is None:
        can = {"argument": telling.arguments is not None, "config": telling.files, "option": telling.options}
        ways = ["env", *(way for way, possible in can.items() if possible)]
        yield Problem(knob.name, f"is told to nobody: give it one of {', '.join(ways)}")
    elif knob.name not in telling.placeholders:
        told = f"give it argument, env or config, or write {{{knob.name}}} into the command"
        yield Problem(knob.name, f"is told to nobody: {told}")


_WAYS: Mapping[str, Callable[[Knob, Telling], Iterator[Problem]]] = {
    "env": _of_variable,
    "argument": _of_argument,
    "config": _of_key,
    "option": _of_option,
    "placeholder": _of_placeholder,
}
