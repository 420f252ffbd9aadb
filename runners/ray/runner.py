"""The Ray runner: jobs as gangs in placement groups of a Ray cluster, forked by agents that stay warm between jobs.

A thin client of a job manager on the cluster, through a driver (`runners.ray.driver`): this process never imports Ray.
A job's folder must be on a file system that all nodes share, and meshtune installed on every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

from meshtune.runners.base import InvalidJob, JobSpec, JobState, JobStatus, SubmitFailed
from meshtune.runners.documents import read_value
from meshtune.runners.json_files import read_json_value, write_whole
from meshtune.runners.local.spool import require_fit
from meshtune.runners.ray.job import RayJob, encode
from meshtune.runners.ray.link import LINKS, Link
from meshtune.search_spaces.checks import CLOSED, Checks
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    __pydantic_config__: ClassVar[Any] = CLOSED

    # As ray.init takes it: "host:6379", "ray://host:10001", or "auto": RAY_ADDRESS, else the cluster of this machine.
    address: str = "auto"
    # Campaigns of one namespace share a job manager and its warm agents.
    namespace: str = "meshtune"
    # How long warm agents hold their devices for another job while nobody waits.
    idle_s: float = 30.0

    def __post_init__(self) -> None:
        checks = Checks()
        checks.require(bool(self.address), "address", "must not be empty")
        checks.require(bool(self.namespace), "namespace", "must not be empty")
        checks.require(0 < self.idle_s < inf, "idle_s", f"must be positive and finite, not {self.idle_s}")
        checks.done()


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
        document = encode(RayJob(spec=spec, devices=self._devices, idle_s=self._options.idle_s))
        if not self._ask("has", self._key(spec.name)):
            try:
                spec.directory.mkdir(parents=True, exist_ok=True)
                for name, text in spec.files.items():
                    write_whole(spec.directory / name, text)
            except OSError as error:
                raise SubmitFailed(f"{spec.name} cannot be written: {error}") from error
            self._ask("add", self._key(spec.name), document)
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
