"""A worker group: a placement group, and in it one agent per node, kept for job after job of the same shape.

Each node's devices are one bundle: a placement strategy holds for a whole group, and one process must hold them all."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meshtune.runners.processes.gang import JOB_MARK, Meeting, kill_marked, meeting_here, minimal_environment
from meshtune.runners.schedulers.ray.job import PlacementRequest, RayJob, RayNode

# The fork server's loop turns every few milliseconds; one that has not ended a job after so long never will.
END_LIMIT_S = 10.0


class Agent:
    """One node's share of one job after another. Raises, and is of no use any more, when its fork server has died."""

    def __init__(self) -> None:
        self._fork_server: Process | None = None
        self._idle = asyncio.Event()

    async def warm(self, command: Sequence[str]) -> tuple[str, str]:
        """Get ready for jobs of this command, which takes seconds at first; return the node's id and address."""
        if self._fork_server is None:
            self._fork_server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "meshtune.runners.schedulers.ray.fork_server"),
                stdin=PIPE,
                stdout=PIPE,
                env=minimal_environment(),
            )
        await self._answer({"do": "warm", "command": list(command)})
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return ray.get_runtime_context().get_node_id(), address

    async def run(self, job: dict[str, Any], ranks: Sequence[int], meeting: tuple[str, int]) -> dict[str, Any]:
        """Run these processes of the job to their end; see `fork_server` for the answer. Without any: until `end`."""
        self._mark = job["env"][JOB_MARK]
        self._idle.clear()
        try:
            return await self._answer({"do": "run", "job": job, "ranks": list(ranks), "meeting": list(meeting)})
        finally:
            self._idle.set()

    async def end(self) -> None:
        """Kill what is left of the job, with a fork server that does not."""
        assert self._fork_server is not None
        self._send({"do": "end"})
        try:
            await asyncio.wait_for(self._idle.wait(), END_LIMIT_S)
        except TimeoutError:
            self._fork_server.kill()
            kill_marked(self._mark)

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send(request)
        assert self._fork_server is not None
        assert self._fork_server.stdout is not None
        line = await self._fork_server.stdout.readline()
        if not line:
            raise BrokenPipeError("the process that starts jobs has died")
        answer: dict[str, Any] = json.loads(line)  # noqa: TID251  # the fork server's; ranks have another output
        return answer

    def _send(self, request: dict[str, Any]) -> None:
        assert self._fork_server is not None
        assert self._fork_server.stdin is not None
        self._fork_server.stdin.write(json.dumps(request).encode() + b"\n")


# The first import of the training code, from a shared file system that is busy with the same for many nodes.
WARM_LIMIT_S = 180.0
_NODE_ID = "ray.io/node-id"


def living_nodes() -> list[RayNode]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [RayNode(node["NodeID"], node["NodeName"], node["Resources"]) for node in nodes if node["Alive"]]


def reserve(job: RayJob, request: PlacementRequest) -> PlacementGroup:
    """Ask for the job's devices. Ray keeps what it cannot place pending, which has an autoscaler add nodes."""
    group: PlacementGroup = placement_group(
        [job.bundle] * job.spec.nodes,
        strategy=request.strategy,
        bundle_label_selector=[{_NODE_ID: f"!in({','.join(request.avoided)})"}] * job.spec.nodes
        if request.avoided
        else None,
    )
    return group


def release(group: PlacementGroup) -> None:
    """Give the devices back; agents that hold them die."""
    with suppress(RayError):
        remove_placement_group(group)


class WorkerGroup:
    """The agents on a group's nodes, in the order of its bundles. nodes: their names, once they are warm."""

    def __init__(self, job: RayJob, group: PlacementGroup) -> None:
        self.shape = job.shape
        self.nodes: tuple[str, ...] = ()
        self._addresses: tuple[str, ...] = ()
        self._group = group
        kind = ray.remote(Agent)
        self.agents: list[Any] = [
            kind.options(
                num_cpus=job.bundle["CPU"],
                num_gpus=job.bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            ).remote()
            for index in range(job.spec.nodes)
        ]

    async def warm(self, command: Sequence[str]) -> None:
        """Get ready for jobs of this command. Raises RayError, TimeoutError."""
        looks = [agent.warm.remote(command) for agent in self.agents]
        ids, self._addresses = zip(*await asyncio.wait_for(asyncio.gather(*looks), WARM_LIMIT_S), strict=True)
        names = {node.id: node.name for node in living_nodes()}
        self.nodes = tuple(names.get(id, id) for id in ids)

    def meeting(self, job: RayJob) -> Meeting:
        """At the job's first node, or on this machine where all its processes are on one."""
        # By its mark, because jobs of one name in two homes must not meet at one port.
        here = meeting_here(replace(job.spec, name=job.spec.env[JOB_MARK]))
        return here if len(set(self._addresses)) == 1 else Meeting(self._addresses[0], here.port)

    def drop(self) -> None:
        """End the agents and give their devices back."""
        for agent in self.agents:
            with suppress(RayError):
                ray.kill(agent)
        release(self._group)


class WorkerGroupPool:
    """The idle worker groups, each kept for a limited time for another job."""

    def __init__(self) -> None:
        self._idle: dict[WorkerGroup, asyncio.TimerHandle] = {}

    def keep(self, group: WorkerGroup, idle_s: float) -> None:
        self._idle[group] = asyncio.get_running_loop().call_later(idle_s, self._drop, group)

    def take(self, job: RayJob) -> WorkerGroup | None:
        """A group of the job's shape, on none of the nodes that it avoids."""
        for group in self._idle:
            if group.shape == job.shape and not set(job.spec.avoid) & set(group.nodes):
                self._idle.pop(group).cancel()
                return group
        return None

    def drop_all(self) -> None:
        for group in list(self._idle):
            self._drop(group)

    def _drop(self, group: WorkerGroup) -> None:
        self._idle.pop(group).cancel()
        group.drop()
