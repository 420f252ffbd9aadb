"""A job on a Ray cluster: what it asks Ray for, why it waits, and what becomes of it. Pure, so it can be tried without
Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Start
from meshtune.runners.processes.gang import first_death, gang_end


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJob:
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


@dataclass(frozen=True, slots=True)
class RayNode:
    """A living node of the cluster."""

    id: str
    # Its IP, unless whoever started it gave it another name.
    name: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    # As Ray calls it.
    strategy: str
    # Ids of the nodes to keep away from.
    avoided: tuple[str, ...]


@dataclass(slots=True)
class JobRun:
    """A job whose processes run on the nodes of a worker group."""

    job: RayJob
    # By the clock on the wall, and by `time.monotonic`.
    started_at: float
    began: float
    nodes: tuple[str, ...]
    # When, by `time.monotonic`, rank and exit code of the processes that ended by themselves.
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    # By node, what is wrong with it.
    faults: dict[str, str] = field(default_factory=dict)
    ending: JobState | None = None

    def note(self, deaths: Sequence[tuple[int, int, float]], now: float) -> None:
        """Take in what a node tells: rank, exit code and how many seconds ago."""
        self.ends += [(now - ago_s, rank, code) for rank, code, ago_s in deaths]

    def blame(self, node: int, why: str) -> None:
        self.faults[self.nodes[node]] = why

    @property
    def deaths(self) -> list[tuple[int, int]]:
        """(rank, exit code) of the processes that ended by themselves, in order."""
        return [(rank, code) for _, rank, code in sorted(self.ends)]

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


def ranks_of(spec: JobSpec, node: int) -> range:
    """The processes that start on the node of this number."""
    if spec.start is Start.JOB:
        return range(1 if node == 0 else 0)
    return range(node * spec.processes_per_node, (node + 1) * spec.processes_per_node)


def room(job: RayJob, nodes: Sequence[RayNode], *, sharing: bool) -> int:
    """How many of the job's nodes these can be. sharing: one of them may be several, as CPU processes may play; the
    devices of several nodes are not in one machine."""
    # The devices that a node has for such a job, in use or not.
    capacities = [min(node.resources.get(name, 0.0) for name in job.bundle) for node in nodes]
    fits = [int(capacity // job.spec.devices_per_node) for capacity in capacities]
    return sum(fits if sharing and job.devices == "CPU" else (fit > 0 for fit in fits))


def request_of(job: RayJob, nodes: Sequence[RayNode]) -> PlacementRequest:
    """The placement group to ask for while these nodes live: on none that the job avoids and each part on its own
    node, as far as they suffice for that. Where they do not suffice at all, it waits for more nodes."""
    count = job.spec.nodes
    choice = [node for node in nodes if node.name not in job.spec.avoid]
    if room(job, choice, sharing=False) < count:
        choice = list(nodes)
    shares = room(job, choice, sharing=False) < count <= room(job, choice, sharing=True)
    return PlacementRequest(
        strategy="PACK" if count == 1 or shares else "STRICT_SPREAD",
        avoided=tuple(sorted(node.id for node in nodes if node not in choice)),
    )


def why_waiting(job: RayJob, nodes: Sequence[RayNode]) -> str:
    """Why Ray has not placed the job yet, with the numbers."""
    needs = f"{job.spec.nodes} x {_shown(job.bundle)}"
    if room(job, nodes, sharing=True) >= job.spec.nodes:
        return f"waits for devices: needs {needs}, which are not free"
    have = Counter(_shown({name: node.resources.get(name, 0.0) for name in job.bundle}) for node in nodes)
    nodes_text = ", ".join(f"{count} x {shown}" for shown, count in sorted(have.items())) or "nothing"
    return f"waits for nodes: needs {needs}, the living nodes have {nodes_text}"


def _shown(resources: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in resources.items()) + "}"
