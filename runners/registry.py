"""Finds runners and workloads by name, and imports them on first use: a missing library, which comes with an extra of
the package, breaks only its own. Schedulers of other packages are found by the entry points of `meshtune.runners`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meshtune.runners.base import Cause, Runner
from meshtune.runners.extras import EXTRAS, require_extra
from meshtune.runners.packages import Packaged, RowT, unloadable, with_packages
from meshtune.runners.processes.job_user import RUN_AS
from meshtune.search_spaces.checks import InvalidValue, Problem, UserError, did_you_mean

if TYPE_CHECKING:
    from meshtune.runners.programs.workloads.base import Workload
    from meshtune.search_spaces.cluster import ClusterSpec

# Of entry points "NAME = module:attribute", whose attribute is a Scheduler.
GROUP = "meshtune.runners"
_TABLE = tomllib.loads(files("meshtune.runners").joinpath("registry.toml").read_text("utf-8"))  # noqa: TID251  # ours


def _rows(section: str, kind: type[RowT]) -> dict[str, RowT]:
    """The rows of a section of registry.toml."""
    made: Mapping[str, Callable[[Any], Any]] = {"harmless": frozenset, "question": tuple, "catalogs": tuple}
    return {
        name: kind(**{key: made[key](value) if key in made else value for key, value in row.items()})
        for name, row in _TABLE[section].items()
    }


@dataclass(frozen=True, slots=True)
class Scheduler(Packaged):
    """A place where jobs run, or a form of job script that can only be exported; both read the same options."""

    # "module:function(root, cluster, options)" that makes a Runner; empty: there is none.
    runner: str = ""
    # "module:function(JobSpec, options)" that renders a job's script; empty: there is none.
    script: str = ""
    # "module:Class" of these options; its `form` says what those that make a difference to a script mean, for people.
    options: str = ""
    # Of an export: what it is, for people; the script's file; and the command that sends it.
    words: str = ""
    script_file: str = ""
    send: str = ""
    # "module:function(JobSpec, cluster, options)" that tells what the scheduler says to a job which it is not given;
    # empty: it cannot be asked that. It raises RunnerError.
    asked: str = ""
    # The options by which two schedulers of the kind are told apart, and their values where a spec leaves them out.
    told_apart: Mapping[str, str] = field(default_factory=dict)
    # What `meshtune doctor` asks it, which changes nothing, and the variable that its jobs have; empty: not asked.
    question: tuple[str, ...] = ()
    allocation: str = ""


SCHEDULERS: Mapping[str, Scheduler] = _rows("schedulers", Scheduler)
# The built-in ones; `runners` has those of other packages too.
RUNNERS: Mapping[str, str] = {name: place.runner for name, place in SCHEDULERS.items() if place.runner}


@dataclass(frozen=True, slots=True)
class TrainingProgram(Packaged):
    """A training code. workload: "module:class(options)". words: what its jobs run, for people. catalogs: of knobs that
    it has."""

    workload: str
    words: str
    catalogs: tuple[str, ...] = ()


WORKLOADS: Mapping[str, TrainingProgram] = _rows("workloads", TrainingProgram)


@dataclass(frozen=True, slots=True)
class Advice:
    """What a person may do about a failure. again: the same job may go well when it runs again unchanged."""

    words: str
    again: bool


ADVICE: Mapping[Cause, Advice] = {Cause(cause): Advice(**row) for cause, row in _TABLE["advice"].items()}


# Jobs of this workload are descriptions, not programs: its runner takes no others, and no other runner takes them.
SIMULATED = "simulated"
# Of this runner somebody else's program runs the jobs (`tuner.service.ask_tell`).
EXTERNAL = "external"


class UnknownBackend(UserError, ValueError):
    """No runner or workload of that name is registered, or the package that registers it is broken."""


@cache
def schedulers() -> Mapping[str, Scheduler]:
    """The built-in schedulers, and those of installed packages (`with_packages`)."""
    return with_packages(GROUP, "scheduler", Scheduler, SCHEDULERS)


def runners() -> Mapping[str, str]:
    """The runners that a spec may name, as RUNNERS; empty where the package that it is from is broken."""
    outside = {name: place.runner for name, place in schedulers().items() if place.runner or place.trouble}
    return {**outside, **RUNNERS}


def create_runner(kind: str, root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> Runner:
    """Starts nothing. Raises UnknownBackend, MissingExtra, InvalidValue."""
    if kind not in ("local", SIMULATED, EXTERNAL) and os.environ.get(RUN_AS):
        own = "`local`, `simulated` and `external`"
        problem = f"{kind} would run jobs as the service's user: with {RUN_AS} there are {own} only"
        raise InvalidValue([Problem("", problem)])
    if kind in EXTRAS:
        require_extra(kind, f"the runner {kind}")
    runner: Runner = load_part(kind, "runner")(root, cluster, options)
    return runner


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Check what a spec says of a runner that need not run here. Raises UnknownBackend, InvalidValue."""
    from meshtune.runners.documents import read_value

    place = schedulers().get(kind, Scheduler())
    if place.options or place.trouble:
        read_value(load_part(kind, "options"), dict(options))


def scheduler_name(kind: str, options: Mapping[str, Any]) -> str:
    """How a scheduler is called, the same for all runners that ask the same one: its kind, and what tells it apart."""
    known = schedulers().get(kind, Scheduler()).told_apart.items()
    differs = [f"{name}={value}" for name, usual in known if (value := options.get(name) or usual) != usual]
    return " ".join((kind, *differs))


def create_workload(kind: str, options: Mapping[str, Any]) -> Workload:
    """Raises UnknownBackend, InvalidValue."""
    workload: Workload = _load_workload(kind)(options)
    return workload


def complete_workload(kind: str, options: Mapping[str, Any], cluster: ClusterSpec) -> Mapping[str, Any]:
    """The options of a spec, with those that it leaves out and the cluster decides. Raises UnknownBackend."""
    completed: Mapping[str, Any] = _load_workload(kind).completed(options, cluster)
    return completed


def check_pair(runner: str, workload: str) -> list[Problem]:
    """Why the runner of one kind cannot run the workload of another; nothing where it can."""
    if (runner == SIMULATED) == (workload == SIMULATED):
        return []
    message = f"the runner {runner} cannot run the workload {workload}: `simulated` goes with `simulated` only"
    return [Problem("runner.kind", message)]


def require_library(runner: str, workload: str) -> None:
    """Check that jobs find their workload's library where the runner starts them here. Raises MissingExtra."""
    if runner == "local" and workload in EXTRAS:
        require_extra(workload, f"the workload {workload}")


def load(dotted: str) -> Any:
    """What "module:name" names, imported on first use."""
    module, _, name = dotted.partition(":")
    return getattr(import_module(module), name)


def load_part(name: str, part: Literal["runner", "script", "options"]) -> Any:
    """What makes a scheduler's runner or its script, or the class of their options. Raises UnknownBackend."""
    scheduler = schedulers().get(name, Scheduler())
    if scheduler.trouble:
        raise UnknownBackend(scheduler.trouble)
    if part == "runner":
        known = runners()
    else:
        known = {name: text for name, place in schedulers().items() if (text := getattr(place, part))}
    try:
        return _load(part, known, name)
    except Exception as error:
        if not scheduler.package:
            raise
        raise UnknownBackend(unloadable("scheduler", name, scheduler.package, error)) from error


def _load_workload(kind: str) -> Any:
    return _load("workload", {name: program.workload for name, program in WORKLOADS.items()}, kind)


def _load(seam: str, known: Mapping[str, str], kind: str) -> Any:
    if kind not in known:
        raise UnknownBackend(f"no {seam} is called {kind!r}; {did_you_mean(kind, known)}")
    return load(known[kind])
