"""Jobs of the plug-in under a real Flux, where this machine has one (`flux` on the PATH or in /opt/flux), or under a
program that pretends to be it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from jobs import Laboratory, processes_where, wait_for
from pretended_flux import write_programs

PLUGIN = Path(__file__).parents[1]
sys.path.insert(0, str(PLUGIN))

from meshtune_flux.runner import FluxRunner  # noqa: E402
from meshtune_flux.script import FluxOptions  # noqa: E402

PLACES = f"{os.environ.get('PATH', '')}:/opt/flux/bin"
NODES = ("node1", "node2")
CORES = 4


def real_flux() -> str | None:
    return shutil.which("flux", path=PLACES)


class Flux:
    """One instance of two nodes of four cores. programs: the folder of its command. uri: where it is."""

    def __init__(self, folder: Path, programs: Path, uri: str = "") -> None:
        self.folder, self.programs, self.uri = folder, programs, uri

    def call(self, *words: str) -> str:
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "FLUX_URI": self.uri, "LC_ALL": "C"}
        command = [str(self.programs / "flux"), *words]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

    def cancel_all(self) -> None:
        self.call("cancel", "--all", "--quiet")

    def idle(self) -> bool:
        return json.loads(self.call("jobs", "--json"))["jobs"] == []


@contextmanager
def started(folder: Path) -> Iterator[Flux]:
    """A real Flux, with brokers that take themselves for two nodes."""
    flux = real_flux()
    assert flux is not None
    folder.mkdir(parents=True)
    encode = [flux, "R", "encode", "--ranks=0-1", f"--cores=0-{CORES - 1}", f"--hosts={','.join(NODES)}"]
    (folder / "R").write_bytes(subprocess.run(encode, check=True, capture_output=True).stdout)
    (folder / "conf.toml").write_text(f'[resource]\nnoverify = true\npath = "{folder}/R"\n')
    run = folder / "run"
    run.mkdir()
    # Its first program: a signal to `flux start` would leave the brokers behind, and the end of this one ends all.
    there_is_work = folder / "open"
    there_is_work.touch()
    program = ["sh", "-c", 'while [ -e "$0" ]; do sleep 0.2; done', str(there_is_work)]
    words = [f"--test-hosts={','.join(NODES)}", f"--test-rundir={run}", f"--config-path={folder}/conf.toml"]
    with (folder / "log").open("wb") as log:
        broker = subprocess.Popen(
            [flux, "start", f"--test-size={len(NODES)}", *words, *program],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
            start_new_session=True,
        )
    there = Flux(folder, Path(flux).parent, f"local://{run}/local-0")
    try:
        wait_for(lambda: (run / "local-0").exists() and _ready(there), 60.0)
        yield there
    finally:
        there_is_work.unlink()
        try:
            broker.wait(30)
        finally:
            for pid in processes_where(lambda at: str(run).encode() in (at / "cmdline").read_bytes()):
                os.kill(pid, signal.SIGKILL)


def _ready(flux: Flux) -> bool:
    try:
        return int(flux.call("resource", "list", "--no-header", "--states=free", "--format={nnodes}")) == len(NODES)
    except (subprocess.CalledProcessError, ValueError):
        return False


@cache
def shared() -> Flux:
    """A real Flux, started once for all tests, which leave it idle."""
    if real_flux() is None:
        pytest.skip("there is no flux on the PATH, nor in /opt/flux")
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    folder = until_the_end.enter_context(tempfile.TemporaryDirectory())
    return until_the_end.enter_context(started(Path(folder) / "instance"))


class FluxLaboratory(Laboratory):
    """The contract suite's. The instance holds 4 processes on a node, of which `requires` names one."""

    period_s = 0.1  # each look starts a `flux jobs`
    limit_s = 120.0  # each job starts brokers of its own, and ends them
    place: Flux

    def __init__(self, folder: Path, place: object = None) -> None:
        super().__init__(folder, place or shared())

    def open(self, *, nodes: int = 1, requires: str = f"host:{NODES[0]}", **options) -> FluxRunner:
        if not self.opened:
            self.patch = pytest.MonkeyPatch()
            self.patch.setenv("PATH", f"{self.place.programs}:{os.environ['PATH']}")
            self.patch.setenv("FLUX_URI", self.place.uri)
        chosen = FluxOptions(requires=requires, cores_per_device=1, **options)
        runner = FluxRunner(self.folder / "records", chosen, nodes=nodes, devices_per_node=self.slots)
        self.opened.append(runner)
        return runner

    def wide(self) -> FluxRunner:
        return self.open(nodes=len(NODES), requires="")

    def close(self) -> None:
        self.place.cancel_all()
        wait_for(self.place.idle, self.limit_s)
        self.wait_nothing_left()
        self.patch.undo()


class PretendedFluxLaboratory(FluxLaboratory):
    def __init__(self, folder: Path, place: object = None) -> None:
        super().__init__(folder, Flux(folder, write_programs(folder / "flux", CORES)))
