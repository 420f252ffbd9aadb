"""A crew: a placement group, and in it one agent per node, kept for job after job of the same shape.

Each node's devices are one bundle: a placement strategy holds for a whole group, so bundles of one device each could
not be told "so many together on each of these nodes", and one process must hold them all to start its node's ranks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meshtune.runners.processes.gang import JOB_MARK, Meeting, meeting_here
from meshtune.runners.ray.agent import Agent, Place
from meshtune.runners.ray.rank_group import Order, shares_node

# The first import of the training code, from a shared file system that is busy with the same for many nodes.
WARM_LIMIT_S = 180.0
_NODE_ID = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of the cluster. name: its IP, unless whoever started it gave it another."""

    id: str
    name: str
    resources: dict[str, float]


def living_nodes() -> list[Node]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [Node(node["NodeID"], node["NodeName"], node["Resources"]) for node in nodes if node["Alive"]]


def capacities(order: Order, nodes: Sequence[Node]) -> list[float]:
    """For how many devices of such a job each node has what it takes, in use or not."""
    return [min(node.resources.get(name, 0.0) for name in order.bundle) for node in nodes]


def reserve(order: Order) -> PlacementGroup:
    """Ask for the job's devices: on as many nodes as it wants where there are so many, and on none that it avoids where
    there are enough others."""
    nodes = living_nodes()
    others = [node for node in nodes if node.name not in order.spec.avoid]
    choice = others if not shares_node(order, capacities(order, others)) else nodes
    shunned = [node.id for node in nodes if node not in choice]
    count = order.spec.nodes
    group: PlacementGroup = placement_group(
        [order.bundle] * count,
        strategy="STRICT_SPREAD" if count > 1 and not shares_node(order, capacities(order, choice)) else "PACK",
        bundle_label_selector=[{_NODE_ID: f"!in({','.join(shunned)})"}] * count if shunned else None,
    )
    return group


def reserved(group: PlacementGroup) -> bool:
    return bool(placement_group_table(group)["state"] == "CREATED")


def release(group: PlacementGroup) -> None:
    """Give the devices back; agents that hold them die."""
    with suppress(RayError):
        remove_placement_group(group)


class Crew:
    """The agents on a group's nodes, in the order of its bundles. nodes: their names, once they are warm."""

    def __init__(self, order: Order, group: PlacementGroup) -> None:
        self.shape = order.shape
        self.nodes: tuple[str, ...] = ()
        self._places: tuple[Place, ...] = ()
        self._group = group
        kind = ray.remote(Agent)
        self.agents: list[Any] = [
            kind.options(
                num_cpus=order.bundle["CPU"],
                num_gpus=order.bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            ).remote()
            for index in range(order.spec.nodes)
        ]

    async def warm(self, command: Sequence[str]) -> None:
        """Get ready for jobs of this command. Raises RayError, TimeoutError."""
        looks = [agent.warm.remote(command) for agent in self.agents]
        self._places = tuple(await asyncio.wait_for(asyncio.gather(*looks), WARM_LIMIT_S))
        names = {node.id: node.name for node in living_nodes()}
        self.nodes = tuple(names.get(place.node, place.node) for place in self._places)

    def meeting(self, order: Order) -> Meeting:
        """Where the job's processes meet: at its first node, or on this machine where they are all on one."""
        # By its mark, because jobs of one name in two homes must not meet at one port.
        here = meeting_here(replace(order.spec, name=order.spec.env[JOB_MARK]))
        addresses = [place.address for place in self._places]
        return here if len(set(addresses)) == 1 else Meeting(addresses[0], here.port)

    def drop(self) -> None:
        """End the agents and give their devices back."""
        for agent in self.agents:
            with suppress(RayError):
                ray.kill(agent)
        release(self._group)


class Pool:
    """The crews that wait for another job, oldest first; each gives its devices back when it has waited too long."""

    def __init__(self) -> None:
        self._idle: dict[Crew, asyncio.TimerHandle] = {}

    def keep(self, crew: Crew, idle_s: float) -> None:
        self._idle[crew] = asyncio.get_running_loop().call_later(idle_s, self._drop, crew)

    def take(self, order: Order) -> Crew | None:
        """A crew of the order's shape, on none of the nodes that it avoids."""
        for crew, timer in self._idle.items():
            if crew.shape == order.shape and not set(order.spec.avoid) & set(crew.nodes):
                timer.cancel()
                del self._idle[crew]
                return crew
        return None

    def drop_oldest(self) -> None:
        """Give back the devices of the crew that has waited longest, if there is any."""
        for crew, timer in self._idle.items():
            timer.cancel()
            self._drop(crew)
            return

    def _drop(self, crew: Crew) -> None:
        del self._idle[crew]
        crew.drop()
