"""What tests of several folders share: the laboratories, and one Slurm cluster for all that need one."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# Before numpy and torch are imported, and for every process that a test starts: the threads of a library of linear
# algebra wait for each other in a loop, which takes four times as long wherever another process has one of the cores.
os.environ["OMP_NUM_THREADS"] = "1"

# The benchmarks are scripts that stand beside each other: their folder is importable here, as when one is run.
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent / "laboratories"))
# What makes pages: last, since it has common names.
sys.path.append(str(Path(__file__).parents[1] / "docs" / "site"))

from ray_lab import ENVIRONMENT, RayLab
from recorded_programs import Recorded
from slurm_lab import SlurmLab, why_not

if TYPE_CHECKING:
    from kubernetes_lab import KubernetesLab

# pytest imports readline, which sets them for the processes that are started from here: their output would be cut at
# 80 columns.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# What a fixture starts says what its tests are.
MARKS = {
    "run_job": "slow",
    "kubernetes_cluster": "slow",
    "slurm_cluster": "slurm",
    "ray_cluster": "ray",
    "chromium": "browser",
}

# How long one example takes is a matter of what else this machine does.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist's own, which reads the groups, runs before ours else
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long forms, unless they are asked for, and mark the rest by their fixtures.

    For several workers of pytest-xdist: what shares a cluster, the trainer's warm process, a database server or a
    module's finished campaign is one worker's. The largest group goes first: the clusters, which wait for most of
    their time, beside the trainer.
    """
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    for item in items:
        for fixture in MARKS.keys() & getattr(item, "fixturenames", ()):
            item.add_marker(MARKS[fixture])
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))
        elif item.get_closest_marker("slurm") or item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("clusters"))
        elif item.get_closest_marker("postgres"):
            item.add_marker(pytest.mark.xdist_group("databases"))
        elif item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group("trainer" if "trainer" in item.path.parts else item.path.stem))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(tmp_path / "bin", monkeypatch)


@pytest.fixture(scope="session")
def turn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], AbstractContextManager[None]]:
    """A turn among the workers of pytest-xdist, shared with others (`fcntl.LOCK_SH`) or alone (`fcntl.LOCK_EX`).

    Ray aborts a slow start: see `ray_lab.prefer`."""
    shared = "PYTEST_XDIST_WORKER" in os.environ
    lock = (tmp_path_factory.getbasetemp().parent if shared else tmp_path_factory.getbasetemp()) / "turn.lock"

    @contextmanager
    def taken(kind: int) -> Iterator[None]:
        with lock.open("w") as file:
            fcntl.flock(file, kind)
            yield

    return taken


@pytest.fixture(autouse=True)
def beside_no_start_of_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """The trainer's jobs wait for a start of Ray, and Ray for theirs to end."""
    if pytest.mark.xdist_group("trainer").mark not in request.node.iter_markers():
        yield
        return
    with request.getfixturevalue("turn")(fcntl.LOCK_SH):
        yield


@pytest.fixture(scope="session")
def ray_cluster(turn) -> Iterator[RayLab]:
    """One Ray node of 4 CPUs, started once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with turn(fcntl.LOCK_EX):
            lab = RayLab(cpus=4)
        with lab:
            yield lab


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmLab]:
    """4 nodes of 4 CPUs, started once for all tests, which leave it idle and as they found it."""
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with SlurmLab() as lab:
        yield lab


@pytest.fixture
def frail_slurm(slurm_cluster: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """A cluster of the test's own, which sees within seconds that a node died, and forgets jobs as fast."""
    with SlurmLab(nodes=3, frail=True, min_job_age_s=3) as lab:
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        yield lab


@pytest.fixture
def slurm_of_ones_own(slurm_cluster: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """A cluster of the test's own, which takes half a minute to see that a node died."""
    with SlurmLab(nodes=3) as lab:
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        yield lab


@pytest.fixture
def slurm(slurm_cluster: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """The cluster with all nodes idle; every Slurm command and our runner speak to it meanwhile."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    slurm_cluster.wait_idle()
    yield slurm_cluster
    slurm_cluster.cancel_all()


@pytest.fixture(scope="session")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesLab]:
    """The tests' own API server with two nodes of 4 devices, started once for all tests."""
    pytest.importorskip("kubernetes")
    from kubernetes_lab import KubernetesLab

    with KubernetesLab(tmp_path_factory.mktemp("kubernetes"), {"node-a": {"lab": "one"}, "node-b": {}}) as lab:
        yield lab


@pytest.fixture
def kubernetes(kubernetes_cluster: KubernetesLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesLab]:
    """The API server without objects; the runner speaks to it meanwhile."""
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_cluster.config))
    yield kubernetes_cluster
    kubernetes_cluster.reset()
