"""Finds runners and workloads by name, and imports them on first use: a missing library breaks only its own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from runners.base import Runner
from runners.workloads.base import Workload
from search_spaces.checks import Problem, did_you_mean
from search_spaces.cluster import ClusterSpec

# name -> "module:function(root, cluster, options)"
RUNNERS: Mapping[str, str] = {"local": "runners.local:create", "simulated": "runners.simulated:create"}
# name -> "module:class(options)"
WORKLOADS: Mapping[str, str] = {
    "torch": "runners.workloads.torch:TorchWorkload",
    "simulated": "runners.workloads.simulated:SimulatedWorkload",
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


def check_pair(runner: str, workload: str) -> list[Problem]:
    """Why the runner of one kind cannot run the workload of another; nothing where it can."""
    if (runner == SIMULATED) == (workload == SIMULATED):
        return []
    told = f"the runner {runner} cannot run the workload {workload}: `simulated` goes with `simulated` only"
    return [Problem("runner.kind", told)]


def _load(seam: str, known: Mapping[str, str], kind: str) -> Any:
    if kind not in known:
        raise UnknownBackend(f"no {seam} is called {kind!r}; {did_you_mean(kind, known)}")
    module, _, name = known[kind].partition(":")
    return getattr(import_module(module), name)
