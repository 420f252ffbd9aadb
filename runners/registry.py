"""Finds runners and workloads by name, and imports them on first use: a missing library breaks only its own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from meshtune.runners.base import Runner
from meshtune.runners.extras import require_extra
from meshtune.runners.workloads.base import Workload
from meshtune.search_spaces.checks import Problem, did_you_mean
from meshtune.search_spaces.cluster import ClusterSpec

# name -> "module:function(root, cluster, options)"
RUNNERS: Mapping[str, str] = {
    "local": "meshtune.runners.local.runner:create",
    "ray": "meshtune.runners.ray.runner:create",
    "slurm": "meshtune.runners.slurm.runner:create",
    "pbs": "meshtune.runners.pbs.runner:create",
    "simulated": "meshtune.runners.simulated.runner:create",
}
# The extras of the package: what a runner needs where it is created, and a workload where its jobs run.
EXTRAS: Mapping[str, str] = {"ray": "ray", "torch": "torch"}
# name -> "module:class(options)"
WORKLOADS: Mapping[str, str] = {
    "torch": "meshtune.runners.workloads.torch:TorchWorkload",
    "command": "meshtune.runners.workloads.command:CommandWorkload",
    "megatron": "meshtune.runners.workloads.megatron:MegatronWorkload",
    "deepspeed": "meshtune.runners.workloads.deepspeed:DeepSpeedWorkload",
    "torchtitan": "meshtune.runners.workloads.torchtitan:TorchtitanWorkload",
    "simulated": "meshtune.runners.workloads.simulated:SimulatedWorkload",
}
# Jobs of this workload are descriptions, not programs: its runner takes no others, and no other runner takes them.
SIMULATED = "simulated"


class UnknownBackend(ValueError):
    """No runner or workload of that name is registered."""


def create_runner(kind: str, root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> Runner:
    """A runner that keeps what it must keep under `root`. Starts nothing. Raises UnknownBackend, MissingExtra,
    InvalidValue."""
    if kind in EXTRAS:
        require_extra(EXTRAS[kind], f"the runner {kind}")
    runner: Runner = _load("runner", RUNNERS, kind)(root, cluster, options)
    return runner


def create_workload(kind: str, options: Mapping[str, Any]) -> Workload:
    """A workload with these options. Raises UnknownBackend, InvalidValue."""
    workload: Workload = _load("workload", WORKLOADS, kind)(options)
    return workload


def check_pair(runner: str, workload: str) -> list[Problem]:
    """Why the runner of one kind cannot run the workload of another; nothing where it can."""
    if (runner == SIMULATED) == (workload == SIMULATED):
        return []
    told = f"the runner {runner} cannot run the workload {workload}: `simulated` goes with `simulated` only"
    return [Problem("runner.kind", told)]


def require_library(runner: str, workload: str) -> None:
    """Check that jobs find their workload's library where the runner starts them here. Raises MissingExtra."""
    if runner == "local" and workload in EXTRAS:
        require_extra(EXTRAS[workload], f"the workload {workload}")


def load(dotted: str) -> Any:
    """What "module:name" names, imported on first use."""
    module, _, name = dotted.partition(":")
    return getattr(import_module(module), name)


def _load(seam: str, known: Mapping[str, str], kind: str) -> Any:
    if kind not in known:
        raise UnknownBackend(f"no {seam} is called {kind!r}; {did_you_mean(kind, known)}")
    return load(known[kind])
