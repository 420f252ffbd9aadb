"""The local runner: jobs as gangs of processes on this machine, kept by a server of their own (`local.server`).
The two share only files (`local.spool`): jobs outlive the service and are found again by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import InvalidJob, JobSpec, JobStatus, Refused, RunnerUnavailable, SubmitFailed, require_fit
from meshtune.runners.devices.visible import VisibleDevices, visible_devices
from meshtune.runners.documents import read_value
from meshtune.runners.json_files import write_files
from meshtune.runners.processes.gang import minimal_environment
from meshtune.runners.processes.job_user import JobUser, job_user
from meshtune.runners.schedulers.local.spool import Spool, SpooledJob
from meshtune.search_spaces.checks import Checks, Closed, Positive, raising
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind

# Servers outlive the runners that started them; kept here, they are reaped when they have ended.
_left_running: list[subprocess.Popen[bytes]] = []


# More than any emulation of a cluster by processes needs, and no load that keeps a service from answering.
PROCESSES_PER_CORE = 16
# What an interpreter with its libraries takes before it does anything: torch without CUDA, mostly.
LEAST_BYTES = 128 * 2**20
# Sets the first limit, in processes.
MOST_PROCESSES = "MESHTUNE_LOCAL_PROCESSES"


def why_too_many(processes: int) -> str:
    """Why this machine does not run so many at once, with the numbers; empty where it does."""
    cores = len(os.sched_getaffinity(0))
    set_to = os.environ.get(MOST_PROCESSES, "")
    most = int(set_to) if set_to.isdecimal() else PROCESSES_PER_CORE * cores
    if processes > most:
        source = MOST_PROCESSES if set_to.isdecimal() else f"{PROCESSES_PER_CORE} for each of its {cores} cores"
        return f"{processes} processes at once are more than the {most} that this machine runs ({source})"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if processes * LEAST_BYTES > memory:
        needs = f"{processes} processes take {LEAST_BYTES >> 20} MiB each before they do anything"
        return f"{needs}, and this machine has {memory >> 20} MiB"
    return ""


class LocalRunner:
    """A Runner over the spool under `root`, which lies in the home. slots: how many processes may run at once.
    gives_devices: each job gets accelerators of its own. user: as whom they run, None for our own."""

    def __init__(
        self, root: Path, *, slots: int, gives_devices: bool = False, idle_s: float = 30.0, user: JobUser | None = None
    ) -> None:
        self._spool = Spool(root.resolve())
        self._user = user
        self._slots = slots
        self._gives_devices = gives_devices
        self._idle_s = idle_s
        self._server: subprocess.Popen[bytes] | None = None

    def submit(self, spec: JobSpec, needs_s: float = 0.0) -> str:
        """needs_s: see `SpooledJob`."""
        require_fit(spec.name)
        if spec.devices < 1:
            raise InvalidJob(f"{spec.name} needs {spec.devices} processes")
        if not spec.command:
            raise InvalidJob(f"{spec.name} has an empty command")
        if spec.devices > self._slots:
            raise Refused(f"{spec.name} needs {spec.devices} processes, but the runner has {self._slots} slots")
        visible = VisibleDevices("", ())
        if self._gives_devices:
            visible = visible_devices({**os.environ, **spec.env}, self._slots)
            if len(visible.names) < spec.devices:
                has = f"{len(visible.names)} of this machine are visible ({visible.variable})"
                raise Refused(f"{spec.name} needs {spec.devices} devices, but {has}")
        with raising(SubmitFailed, f"{spec.name} cannot be written", OSError):
            self._spool.create()
            if not self._spool.has(spec.name):
                directory = spec.directory.resolve()
                write_files(directory, spec.files)
                if self._user is not None:
                    directory.chmod(0o700)
                    self._user.open_way(directory, self._spool.root.parent)
                run_as = "" if self._user is None else self._user.name
                self._spool.add(
                    SpooledJob(
                        spec=replace(spec, directory=directory),
                        slots=self._slots,
                        devices=visible.names,
                        device_variable=visible.variable,
                        run_as=run_as,
                        needs_s=needs_s,
                    )
                )
        self._wake_server()
        return spec.name

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        with raising(RunnerUnavailable, f"the spool {self._spool.root} cannot be read", OSError, ValueError):
            statuses = {id: self._spool.status(id) for id in ids}
        if all(status.state.final for status in statuses.values()):
            return statuses
        with raising(RunnerUnavailable, "the local server cannot be started", OSError):
            lives = self._ensure_server()
        if not lives:
            raise RunnerUnavailable(f"the local server has died; see {self._spool.log}")
        return statuses

    def cancel(self, id: str) -> None:
        try:
            if self._spool.has(id):
                self._spool.ask_cancel(id)
        except OSError as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error.strerror}") from error

    def find(self, name: str) -> str | None:
        return name if self._spool.has(name) else None

    def close(self) -> None:
        """Running jobs stay with the server, which ends by itself when idle."""
        if self._server is not None:
            _left_running.append(self._server)
            self._server = None
        _left_running[:] = [server for server in _left_running if server.poll() is None]

    def _wake_server(self) -> None:
        """After a job is sent: a server that does not start now is started by a later poll."""
        with suppress(OSError):
            self._ensure_server()

    def _ensure_server(self) -> bool:
        """See that a server lives; False when ours had died. Raises OSError."""
        if self._server is not None and self._server.poll() is None:
            return True
        died = self._server is not None and self._server.returncode != 0
        self._server = None
        if not self._spool.root.is_dir():
            return True
        lock = self._spool.take_lock()
        if lock is None:
            return True
        os.close(lock)
        server = ("-m", "meshtune.runners.schedulers.local.server", str(self._spool.root))
        with self._spool.log.open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, *server, "--idle-s", str(self._idle_s)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=minimal_environment(),
                start_new_session=True,
            )
        return not died


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions(Closed):
    # Processes that may run at once, by default the cluster's devices.
    slots: int | None = None
    # How long the warm server waits for another job before it ends.
    idle_s: Positive = 30.0


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> LocalRunner:
    """Raises InvalidValue when a job of the cluster's size could never start."""
    chosen = read_value(LocalOptions, dict(options))
    slots = cluster.devices if chosen.slots is None else chosen.slots
    checks = Checks()
    # CPU processes may play several nodes; the devices of several nodes are not in one machine.
    has = f"the cluster has {cluster.nodes} nodes of {cluster.devices_per_node} {cluster.device.name}"
    one = cluster.nodes == 1 or cluster.device.kind is DeviceKind.CPU
    checks.require(one, "", f"the local runner has this machine's devices only, but {has}")
    problem = f"slots({slots}) cannot hold the {cluster.devices} processes of one trial"
    checks.require(slots >= cluster.devices, "slots", problem)
    too_many = why_too_many(slots)
    checks.require(not too_many, "slots", too_many)
    checks.done()
    on_devices = cluster.device.kind is not DeviceKind.CPU
    return LocalRunner(root, slots=slots, gives_devices=on_devices, idle_s=chosen.idle_s, user=job_user())
