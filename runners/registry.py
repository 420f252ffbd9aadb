"""Finds runners and workloads by name, and imports them on first use: a missing library breaks only its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, Runner
from meshtune.runners.dialects.base import CannotRead, Files, Imported
from meshtune.runners.workloads.base import Workload
from meshtune.search_spaces.checks import Problem, did_you_mean
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A place where jobs run, or a form of job script that can only be exported; one that is both reads the same
    options in either."""

    # "module:function(root, cluster, options)" that makes a Runner; empty: there is none.
    runner: str = ""
    # "module:function(JobSpec, options)" that renders a job's script; empty: there is none.
    script: str = ""
    # Of an export: the script's file, and the command that sends it.
    script_file: str = ""
    send: str = ""


SCHEDULERS: Mapping[str, Scheduler] = {
    "local": Scheduler(runner="meshtune.runners.local.runner:create"),
    "ray": Scheduler(runner="meshtune.runners.ray.runner:create"),
    "slurm": Scheduler(
        runner="meshtune.runners.slurm.runner:create",
        script="meshtune.runners.slurm.script:render_script",
        script_file="job.sbatch",
        send="sbatch",
    ),
    "pbs": Scheduler(
        runner="meshtune.runners.pbs.runner:create",
        script="meshtune.runners.pbs.script:render_script",
        script_file="job.pbs",
        send="qsub",
    ),
    "simulated": Scheduler(runner="meshtune.runners.simulated.runner:create"),
    "jobset": Scheduler(
        script="meshtune.runners.kubernetes:render_jobset", script_file="jobset.yaml", send="kubectl create -f"
    ),
    "trainjob": Scheduler(
        script="meshtune.runners.kubernetes:render_trainjob", script_file="trainjob.yaml", send="kubectl create -f"
    ),
}
RUNNERS: Mapping[str, str] = {name: place.runner for name, place in SCHEDULERS.items() if place.runner}
SCRIPTS: Mapping[str, str] = {name: place.script for name, place in SCHEDULERS.items() if place.script}
# name -> "module:class(options)"
WORKLOADS: Mapping[str, str] = {
    "torch": "meshtune.runners.workloads.torch:TorchWorkload",
    "command": "meshtune.runners.workloads.command:CommandWorkload",
    "megatron": "meshtune.runners.workloads.megatron:MegatronWorkload",
    "deepspeed": "meshtune.runners.workloads.deepspeed:DeepSpeedWorkload",
    "torchtitan": "meshtune.runners.workloads.torchtitan:TorchtitanWorkload",
    "simulated": "meshtune.runners.workloads.simulated:SimulatedWorkload",
}
# Other programs' own words for a plan: name -> its module, see `runners.dialects.base`.
DIALECTS: Mapping[str, str] = {
    "megatron": "meshtune.runners.dialects.megatron.dialect",
    "deepspeed": "meshtune.runners.dialects.deepspeed.config",
    "torchtitan": "meshtune.runners.dialects.torchtitan.dialect",
    "accelerate": "meshtune.runners.dialects.accelerate",
}


# Jobs of this workload are descriptions, not programs: its runner takes no others, and no other runner takes them.
SIMULATED = "simulated"


class UnknownBackend(ValueError):
    """No runner or workload of that name is registered."""


def create_runner(kind: str, root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> Runner:
    """A runner that keeps what it must keep under `root`. Starts nothing. Raises UnknownBackend, InvalidValue."""
    runner: Runner = _load("runner", RUNNERS, kind)(root, cluster, options)
    return runner


def create_workload(kind: str, options: Mapping[str, Any]) -> Workload:
    """A workload with these options. Raises UnknownBackend, InvalidValue."""
    workload: Workload = _load("workload", WORKLOADS, kind)(options)
    return workload


def render_script(kind: str, spec: JobSpec, options: Mapping[str, Any]) -> str:
    """What a scheduler would be given to run the job. Raises UnknownBackend, InvalidValue."""
    text: str = _load("job script", SCRIPTS, kind)(spec, options)
    return text


def render_dialect(
    kind: str, model: ModelSpec, plan: Plan, cluster: ClusterSpec, extra: Mapping[str, Any] | None = None
) -> Files:
    """A plan in another program's words. extra: that workload's options. Raises UnknownBackend, CannotExpress."""
    files: Files = _dialect(kind).render(model, plan, cluster, extra or {})
    return files


def parse_dialect(kind: str, text: str) -> Imported:
    """What a launch script or configuration of another program says. Raises UnknownBackend, CannotRead."""
    module = _dialect(kind)
    if not hasattr(module, "parse"):
        raise CannotRead(f"scripts of {kind} cannot be read, only written")
    imported: Imported = module.parse(text)
    return imported


def _dialect(kind: str) -> Any:
    return import_module(_require_known("dialect", DIALECTS, kind))


def check_pair(runner: str, workload: str) -> list[Problem]:
    """Why the runner of one kind cannot run the workload of another; nothing where it can."""
    if (runner == SIMULATED) == (workload == SIMULATED):
        return []
    message = f"the runner {runner} cannot run the workload {workload}: `simulated` goes with `simulated` only"
    return [Problem("runner.kind", message)]


def _require_known(seam: str, known: Mapping[str, str], kind: str) -> str:
    if kind not in known:
        raise UnknownBackend(f"no {seam} is called {kind!r}; {did_you_mean(kind, known)}")
    return known[kind]


def _load(seam: str, known: Mapping[str, str], kind: str) -> Any:
    module, _, name = _require_known(seam, known, kind).partition(":")
    return getattr(import_module(module), name)
