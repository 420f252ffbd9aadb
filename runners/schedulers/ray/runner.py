"""The Ray runner: jobs as gangs in placement groups of a Ray cluster, forked by agents that stay warm between jobs.

A thin client of a job manager on the cluster, through a driver (`ray.driver`): this process never imports Ray.
A job's folder must be on a file system that all nodes share, and meshtune installed on every node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from meshtune.runners.base import InvalidJob, JobSpec, JobState, JobStatus, RunnerUnavailable, SubmitFailed, require_fit
from meshtune.runners.documents import read_value
from meshtune.runners.json_files import encode_job, read_json_value, write_files
from meshtune.search_spaces.checks import Checks, Closed, Positive, raising
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind

# A driver's imports and its connection take two seconds on an idle machine.
CONNECT_LIMIT_S = 60.0
ANSWER_LIMIT_S = 25.0


class Link:
    """This process's end of a driver, one for each cluster, shared by every runner object that wants the same. Asks the
    driver, started on first use and again after its death. Safe for threads."""

    def __init__(self, address: str, log: Path) -> None:
        self._address = address
        self._log = log
        self._driver: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, namespace: str, verb: str, *arguments: Any) -> Any:
        """What the job manager of the namespace answers. Raises RunnerUnavailable."""
        with self._lock:
            if self._driver is None or self._driver.poll() is not None:
                self.end()
                self._start()
                try:
                    self._answer(CONNECT_LIMIT_S)
                except RunnerUnavailable:
                    self.end()  # one that is about to exit must not get the next question
                    raise
            return self._answer(ANSWER_LIMIT_S, (namespace, verb, arguments))

    def end(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        self._channel.close()
        try:
            driver.wait(5.0)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()

    def _start(self) -> None:
        self._channel, theirs = Pipe()
        with raising(RunnerUnavailable, "the Ray driver cannot be started", OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with theirs, self._log.open("ab") as log:
                self._driver = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "meshtune.runners.schedulers.ray.driver",
                        str(theirs.fileno()),
                        self._address,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                    # Ray puts a driver's folder on the module path of every worker: it must hold no modules.
                    cwd=self._log.parent,
                    env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                    start_new_session=True,
                )

    def _answer(self, limit_s: float, request: tuple[Any, ...] | None = None) -> Any:
        """The driver's answer to a request; without one, its word that it is connected."""
        assert self._driver is not None
        failure = "has died"
        try:
            if request is not None:
                self._channel.send(request)
            if self._channel.poll(limit_s):
                answer, error = self._channel.recv()
                if error:
                    raise RunnerUnavailable(f"Ray: {error}")
                return answer
            failure = f"did not answer within {limit_s:g} s"
        except (EOFError, OSError):
            pass
        self._driver.kill()
        self.end()
        raise RunnerUnavailable(f"the Ray driver {failure}; see {self._log}")


class Links:
    """The links of this process, by the addresses of their clusters; each ends with its last user."""

    def __init__(self) -> None:
        self._links: dict[str, tuple[Link, int]] = {}
        self._lock = threading.Lock()

    def take(self, address: str, log: Path) -> Link:
        with self._lock:
            link, users = self._links.get(address) or (Link(address, log), 0)
            self._links[address] = (link, users + 1)
            return link

    def give_back(self, address: str) -> None:
        with self._lock:
            link, users = self._links.pop(address)
            if users > 1:
                self._links[address] = (link, users - 1)
                return
        link.end()


LINKS = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions(Closed):
    # As ray.init takes it: "host:6379", "ray://host:10001", or "auto": RAY_ADDRESS, else the cluster of this machine.
    address: str = "auto"
    # Campaigns of one namespace share a job manager and its warm agents.
    namespace: str = "meshtune"
    # How long warm agents hold their devices for another job while nobody waits.
    idle_s: Positive = 30.0

    def _check(self, checks: Checks) -> None:
        checks.require(bool(self.address), "address", "must not be empty")
        checks.require(bool(self.namespace), "namespace", "must not be empty")


class RayRunner:
    """A Runner over the job manager of a namespace. Its jobs are those of `root`.

    devices: Ray's resource that counts the devices of a job."""

    def __init__(self, root: Path, options: RayOptions, *, devices: str) -> None:
        self._root = root.resolve()
        self._options = options
        self._devices = devices
        self._link: Link | None = None

    def submit(self, spec: JobSpec) -> str:
        require_fit(spec.name)
        if spec.devices < 1:
            raise InvalidJob(f"{spec.name} needs {spec.devices} processes, and must need one at least")
        if not spec.command:
            raise InvalidJob(f"{spec.name} has an empty command")
        spec = replace(spec, directory=spec.directory.resolve())
        job = {"spec": encode_job(spec), "devices": self._devices, "idle_s": self._options.idle_s}
        if not self._ask("has", self._key(spec.name)):
            with raising(SubmitFailed, f"{spec.name} cannot be written", OSError):
                write_files(spec.directory, spec.files)
            self._ask("add", self._key(spec.name), job)
        return spec.name

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        answers = self._ask("look", [self._key(id) for id in ids]) if ids else {}
        unknown = JobStatus(state=JobState.LOST, reason="the job manager on the Ray cluster does not know this job")
        documents = {id: answers[self._key(id)] for id in ids}
        return {id: read_json_value(JobStatus, seen) if seen else unknown for id, seen in documents.items()}

    def cancel(self, id: str) -> None:
        self._ask("cancel", self._key(id))

    def find(self, name: str) -> str | None:
        return name if self._ask("has", self._key(name)) else None

    def close(self) -> None:
        if self._link is not None:
            LINKS.give_back(self._options.address)
            self._link = None

    def _key(self, name: str) -> str:
        return f"{self._root}#{name}"

    def _ask(self, verb: str, *arguments: Any) -> Any:
        """Raises RunnerUnavailable."""
        if self._link is None:
            self._link = LINKS.take(self._options.address, self._root / "driver.log")
        return self._link.ask(self._options.namespace, verb, *arguments)


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> RayRunner:
    """Raises InvalidValue."""
    devices = "CPU" if cluster.device.kind is DeviceKind.CPU else "GPU"
    return RayRunner(root, read_value(RayOptions, dict(options)), devices=devices)
