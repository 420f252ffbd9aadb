"""The laboratory of every runner that keeps the contract; tests/laboratories/jobs.py says how another one joins."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path

import pytest
from jobs import Laboratory, LocalLaboratory
from ray_lab import RayLab

Turn = Callable[[int], AbstractContextManager[None]]
SLOW, LONG, SLURM, RAY = pytest.mark.slow, pytest.mark.long, pytest.mark.slurm, pytest.mark.ray
# name -> "module:class" in tests/laboratories, imported by the tests that use it; the marks of the contract's tests,
# and those of the life cycle's.
LABORATORIES = {
    "local": ("jobs:LocalLaboratory", (), ()),
    "slurm": ("slurm_jobs:SlurmLaboratory", (SLOW, SLURM), (LONG, SLURM)),
    # Its own tests are in test_slurm_allocation.py; the rest is the local runner's and the Slurm runner's.
    "allocation": ("allocation_jobs:AllocationLaboratory", (LONG, SLURM), (LONG, SLURM)),
    # Its own tests are in test_slurm_pilot.py.
    "pilot": ("pilot_jobs:PilotLaboratory", (LONG, SLURM), (LONG, SLURM)),
    "ray": ("ray_jobs:RayLaboratory", (SLOW, RAY), (LONG, RAY)),
    "kubernetes": ("kubernetes_jobs:KubernetesLaboratory", (LONG,), (LONG,)),
}
# Lmod, and Environment Modules, where Debian has them.
MODULE_SYSTEMS = ("/usr/share/lmod/lmod/init/bash", "/usr/share/modules/init/bash")
# Its jobs are descriptions, not programs.
SIMULATED = {
    "simulated": ("simulated_jobs:SimulatedLaboratory", (), ()),
    "external": ("external_jobs:ExternalLaboratory", (), ()),
}
# Those whose nodes a test may kill, in a cluster of its own.
MORTAL = {name: (LABORATORIES[name][0], "slurm_of_ones_own", SLURM) for name in ("slurm", "allocation", "pilot")}
MORTAL |= {
    "ray": (LABORATORIES["ray"][0], "ray_of_ones_own", RAY),
    "kubernetes": (LABORATORIES["kubernetes"][0], "kubernetes", LONG),
}
# "module:class" of a runner of another package, which is tried alone (docs/how-to/add-a-scheduler.md).
if chosen := os.environ.get("MESHTUNE_LABORATORY"):
    LABORATORIES, SIMULATED, MORTAL = {chosen: (chosen, (), ())}, {}, {}


def _laboratory(kind: type[Laboratory], folder: Path, place: object = None) -> Iterator[Laboratory]:
    laboratory = kind(folder, place)
    try:
        yield laboratory
    finally:
        laboratory.close()
        left = laboratory.left()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes outlived their jobs"


def _open(request: pytest.FixtureRequest, folder: Path) -> Iterator[Laboratory]:
    module, _, name = request.param.partition(":")
    if name.startswith("Kubernetes"):
        pytest.importorskip("kubernetes")
    kind = getattr(import_module(module), name)
    place = request.getfixturevalue(kind.needs) if kind.needs else None
    yield from _laboratory(kind, folder, place)


@pytest.fixture(params=[pytest.param(path, marks=own, id=name) for name, (path, own, _) in LABORATORIES.items()])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Laboratory]:
    """A laboratory of every runner that runs programs."""
    yield from _open(request, tmp_path)


@pytest.fixture(
    params=[pytest.param(path, marks=own, id=name) for name, (path, _, own) in (LABORATORIES | SIMULATED).items()]
)
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Laboratory]:
    """A laboratory of every runner, for jobs of any kind."""
    yield from _open(request, tmp_path)


@pytest.fixture
def ray_of_ones_own(ray_cluster: RayLab, turn: Turn) -> Iterator[RayLab]:
    """A head without devices, and three nodes of 2 CPUs."""
    with turn(fcntl.LOCK_EX):
        cluster = RayLab(cpus=0)
        for node in ("n1", "n2", "n3"):
            cluster.add_node(node, cpus=2)
    with cluster:
        yield cluster


@pytest.fixture(params=[pytest.param(entry, marks=(LONG, entry[2]), id=name) for name, entry in MORTAL.items()])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Laboratory]:
    """A laboratory that is `wide`, of every runner whose scheduler can lose a node without a word."""
    path, place, _ = request.param
    module, _, name = path.partition(":")
    if name.startswith("Kubernetes"):
        pytest.importorskip("kubernetes")
    for laboratory in _laboratory(getattr(import_module(module), name), tmp_path, request.getfixturevalue(place)):
        laboratory.runner = laboratory.wide()
        yield laboratory


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalLaboratory]:
    yield from _laboratory(LocalLaboratory, tmp_path)


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with a module that sets GREETING, for the modules system of this machine."""
    if not any(map(Path.exists, map(Path, MODULE_SYSTEMS))):
        pytest.skip(f"no modules system: {' and '.join(MODULE_SYSTEMS)} are not there")
    folder = tmp_path / "modulefiles"
    folder.mkdir()
    (folder / "greeting").write_text("#%Module\nsetenv GREETING hello\n")
    return folder
