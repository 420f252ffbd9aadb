"""A job on a Ray cluster, and what becomes of it by what its agents saw: pure, so it can be tried without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from meshtune.runners.base import JobSpec, JobState, JobStatus, Start
from meshtune.runners.failure_cause import Cause
from meshtune.runners.json_files import encode_job
from meshtune.runners.processes.gang import first_death, gang_end


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJob:
    """A job, and what it wants of each node."""

    spec: JobSpec
    # Ray's resource that counts devices: "GPU", or "CPU" for CPU processes.
    devices: str
    # How long its warm agents wait for another job before they give their devices back.
    idle_s: float

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one node's share."""
        count = float(self.spec.devices_per_node)
        return {"CPU": count, self.devices: count}

    @property
    def shape(self) -> tuple[str, int, int]:
        """Jobs of equal shapes can use the same agents."""
        return self.devices, self.spec.nodes, self.spec.devices_per_node


@dataclass(slots=True)
class JobRun:
    """A job whose processes run on the nodes of a worker group."""

    job: RayJob
    # By the clock on the wall, and by `time.monotonic`.
    started_at: float
    began: float
    nodes: tuple[str, ...]
    # (rank, exit code) of the processes that ended by themselves, in order of notice.
    deaths: list[tuple[int, int]] = field(default_factory=list)
    # By node, what is wrong with it.
    faults: dict[str, str] = field(default_factory=dict)
    ending: JobState | None = None

    @property
    def over(self) -> bool:
        """Nothing is to be waited for, but the last words of the peers of a dead process."""
        return bool(len(self.deaths) == self.job.spec.processes or self.failed or self.faults or self.ending)

    @property
    def failed(self) -> bool:
        """A process failed by itself: its peers get a moment to write down what they saw."""
        return first_death(self.deaths) is not None

    def status(self, finished_at: float, ended: float) -> JobStatus:
        """How it ended. ended: by `time.monotonic`. A lost node outdoes what processes say: their peers notice its
        silence before Ray does."""
        lost = bool(self.faults) and self.ending is not JobState.CANCELLED
        if lost:
            reason = "; ".join(f"node {node}: {why}" for node, why in self.faults.items())
            end = JobStatus(state=JobState.LOST, reason=reason, cause=Cause.NODE_FAULT)
        else:
            end = gang_end(self.job.spec, self.deaths, self.ending)
        return replace(
            end,
            started_at=self.started_at,
            finished_at=finished_at,
            elapsed_s=ended - self.began,
            nodes=self.nodes,
            failed_nodes=tuple(self.faults),
        )


def encode(job: RayJob) -> dict[str, Any]:
    return {**asdict(job), "spec": encode_job(job.spec)}


def ranks_of(spec: JobSpec, node: int) -> range:
    """The processes that start on the node of this number."""
    if spec.start is Start.JOB:
        return range(1 if node == 0 else 0)
    return range(node * spec.processes_per_node, (node + 1) * spec.processes_per_node)


def refusal(job: RayJob, capacities: Sequence[float]) -> str:
    """Why the job can never run on nodes with so many devices each; empty where it can.

    CPU processes may play several nodes on one; the devices of several nodes are not in one machine."""
    spec = job.spec
    slots = int(sum(capacities))
    if not 1 <= spec.devices <= slots:
        return f"{spec.name} needs {spec.devices} processes, but the runner has {slots} slots"
    if not spec.command:
        return f"{spec.name} has an empty command"
    if job.devices == "CPU":
        room = sum(int(capacity // spec.devices_per_node) for capacity in capacities)
    else:
        room = sum(capacity >= spec.devices_per_node for capacity in capacities)
    if room < spec.nodes:
        wanted = f"{spec.nodes} nodes of {spec.devices_per_node} {job.devices}"
        have = ", ".join(f"{capacity:g}" for capacity in sorted(capacities, reverse=True))
        return f"{spec.name} needs {wanted}, but Ray's nodes have {have}"
    return ""


def shares_node(job: RayJob, capacities: Sequence[float]) -> bool:
    """Whether the cluster has too few nodes for the job to have each of its own to itself."""
    return sum(capacity >= job.spec.devices_per_node for capacity in capacities) < job.spec.nodes
