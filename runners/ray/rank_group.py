"""What becomes of one job on a Ray cluster, judged from what its agents saw: pure, so it can be tried without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.base import JobSpec, JobState, JobStatus, Start
from meshtune.runners.failure_cause import Cause
from meshtune.runners.processes.gang import exit_text, first_death
from meshtune.runners.processes.job_json import decode_job, encode_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job, and what it wants of each node. devices: Ray's resource that counts devices ("GPU", or "CPU" for CPU
    processes). idle_s: how long its warm agents wait for another job before they give their devices back."""

    spec: JobSpec
    devices: str
    idle_s: float

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one node's share."""
        count = float(self.spec.devices_per_node)
        return {"CPU": count, self.devices: count}

    @property
    def shape(self) -> tuple[str, int, int]:
        """Jobs of equal shapes can use the same agents, one after another."""
        return self.devices, self.spec.nodes, self.spec.devices_per_node


@dataclass(slots=True)
class Gang:
    """A job whose processes run. deaths: (rank, exit code) of those that ended by themselves, in order of notice.
    faults: node -> what is wrong with it."""

    order: Order
    started_at: float
    nodes: tuple[str, ...]
    deaths: list[tuple[int, int]] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    ending: JobState | None = None

    @property
    def over(self) -> bool:
        """True when nothing is to be waited for, but what the peers of a dead process may have to say."""
        everybody = len(self.deaths) == self.order.spec.processes
        return bool(everybody or self.stricken or self.faults or self.ending)

    @property
    def stricken(self) -> bool:
        """True when a process failed by itself: its peers get a moment to write down what they saw."""
        return first_death(self.deaths) is not None

    def status(self, finished_at: float) -> JobStatus:
        """How it ended, once every agent was asked for the end.

        A lost node outdoes what processes say: their peers notice its silence before Ray does, and fail of it.
        """
        spec = self.order.spec
        code: int | None = None
        cause = None
        if self.ending is JobState.CANCELLED:
            state, reason = JobState.CANCELLED, "cancelled"
        elif self.faults:
            state, cause = JobState.LOST, Cause.NODE_FAULT
            reason = "; ".join(f"node {node}: {why}" for node, why in self.faults.items())
        elif self.ending is JobState.TIMED_OUT:
            state, reason = JobState.TIMED_OUT, f"ran longer than its time limit of {spec.time_limit_s:g} s"
        elif (death := first_death(self.deaths)) is not None:
            state, reason, code = JobState.FAILED, exit_text(*death), death[1]
        else:
            state, reason, code = JobState.SUCCEEDED, "", 0
        return JobStatus(
            state=state,
            reason=reason,
            exit_code=code,
            started_at=self.started_at,
            finished_at=finished_at,
            nodes=self.nodes,
            failed_nodes=tuple(self.faults),
            cause=cause,
        )


def encode_order(order: Order) -> dict[str, Any]:
    """The order as plain JSON values, see `encode_job`."""
    return {"spec": encode_job(order.spec), "devices": order.devices, "idle_s": order.idle_s}


def decode_order(document: Mapping[str, Any]) -> Order:
    """`encode_order` undone."""
    return Order(spec=decode_job(document["spec"]), devices=document["devices"], idle_s=document["idle_s"])


def ranks_of(spec: JobSpec, node: int) -> range:
    """The processes that start on the node of this number."""
    if spec.start is Start.JOB:
        return range(1 if node == 0 else 0)
    return range(node * spec.processes_per_node, (node + 1) * spec.processes_per_node)


def refusal(order: Order, capacities: Sequence[float]) -> str:
    """Why the job can never run on nodes that have so many devices each; empty where it can.

    CPU processes may play several nodes on one; the devices of several nodes are not in one machine.
    """
    spec = order.spec
    slots = int(sum(capacities))
    if not 1 <= spec.devices <= slots:
        return f"{spec.name} needs {spec.devices} processes, but the runner has {slots} slots"
    if not spec.command:
        return f"{spec.name} has an empty command"
    if order.devices == "CPU":
        room = sum(int(capacity // spec.devices_per_node) for capacity in capacities)
    else:
        room = sum(capacity >= spec.devices_per_node for capacity in capacities)
    if room < spec.nodes:
        wanted = f"{spec.nodes} nodes of {spec.devices_per_node} {order.devices}"
        have = ", ".join(f"{capacity:g}" for capacity in sorted(capacities, reverse=True))
        return f"{spec.name} needs {wanted}, but Ray's nodes have {have}"
    return ""


def shares_node(order: Order, capacities: Sequence[float]) -> bool:
    """True where the cluster has too few nodes for the job to have each of its own to itself."""
    return sum(capacity >= order.spec.devices_per_node for capacity in capacities) < order.spec.nodes
