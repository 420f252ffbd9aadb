"""Small spaces, and an analytic landscape over one of them: what a search is tried on without running anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import Capabilities, SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Search, Task

DEVICE = DeviceSpec(
    name="toy",
    kind=DeviceKind.CUDA,
    memory_bytes=40 * 2**30,
    memory_bandwidth_bytes_per_s=1.5e12,
    peak_flops={"float16": 312e12, "bfloat16": 312e12},
    sustained_flops={"float16": 250e12, "bfloat16": 250e12},
)
CAPACITY_GIB = 40.0
MODEL = ModelSpec(name="toy", layers=24, hidden=2048, heads=16, ffn=8192, vocab=32000, seq_len=2048)
ABLE = Capabilities(
    recompute=frozenset(Recompute),
    schedules=frozenset({Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE}),
    zero_stages_with_pp=frozenset({0, 1}),
    contexts=frozenset(ContextParallel),
)


def make_space(nodes: int, batch: int | None, bounds: Bounds) -> Space:
    cluster = ClusterSpec(
        name="toy",
        nodes=nodes,
        devices_per_node=8,
        device=DEVICE,
        node_link=LinkSpec(latency_s=3e-6, bandwidth_bytes_per_s=2.4e11),
        network_link=LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=2.5e10),
    )
    return Space(bounds, SpaceContext(model=MODEL, cluster=cluster, global_batch_size=batch, capabilities=ABLE))


def task_of(space: Space, **more: Any) -> Task:
    """The task of finding the best plan of the space."""
    training = Training(space.context.model, space.context.cluster, MEGATRON_DEEPSPEED)
    return Task(space=space, training=training, **more)


@dataclass(frozen=True)
class Landscape:
    """Tokens per second, and memory, of each plan on 64 imagined devices: smooth, with interactions, part of it OOM.

    The shapes are those of the textbook (bubble, ring all-reduce, activations in flight); the constants are ours.
    """

    space: Space

    def memory_gib(self, plan: Plan) -> float:
        cut = plan.tp * plan.pp
        shard = {0: 1.0, 1: 0.25 + 0.75 / plan.dp, 2: 0.12 + 0.88 / plan.dp, 3: 1.0 / plan.dp}[plan.zero_stage]
        states = 112.0 / cut * shard
        kept = {Recompute.NONE: 1.0, Recompute.SELECTIVE: 0.45, Recompute.FULL: 0.08}[plan.recompute]
        activations = 14.0 * plan.micro_batch_size * kept / plan.tp / plan.cp * min(1.0, 0.4 + 0.6 / plan.pp)
        return states + activations + 2.0

    def tokens_per_s(self, plan: Plan) -> float:
        again = {Recompute.NONE: 1.0, Recompute.SELECTIVE: 1.06, Recompute.FULL: 1.31}[plan.recompute]
        saturated = plan.micro_batch_size / (plan.micro_batch_size + 0.25 * plan.tp**0.5)
        compute = again / saturated
        tensor = 0.11 * log2(plan.tp) * (1 + 0.15 * log2(plan.tp)) + 0.08 * log2(plan.cp)
        bubble = compute * (plan.pp - 1) / plan.grad_accum_steps / plan.vpp + 0.03 * (plan.vpp - 1)
        reduce = (
            0.55 * (plan.dp - 1) / plan.dp / (plan.tp * plan.pp) * {0: 1.0, 1: 1.0, 2: 1.1, 3: 1.6}[plan.zero_stage]
        )
        update = 0.1 / (plan.tp * plan.pp) / (plan.dp if plan.zero_stage else 1)
        return 100_000.0 / (compute + tensor + bubble + reduce + update)

    def measure(self, plan: Plan) -> Observation:
        if self.memory_gib(plan) > CAPACITY_GIB:
            return Observation(plan=plan, verdict=Verdict.OOM)
        score = self.tokens_per_s(plan)
        return Observation(plan=plan, verdict=Verdict.OK, score=score, step_time_s=512 * MODEL.seq_len / score)

    @property
    def best(self) -> float:
        return max(seen.score for plan in self.space if (seen := self.measure(plan)).score is not None)

    def trials_to(self, share: float, search: Search, limit: int) -> int:
        """How many trials one after the other, failed ones included, until `share` of the best is reached."""
        goal = share * self.best
        seen: list[Observation] = []
        while len(seen) < limit:
            (plan,) = search.ask(task_of(self.space), seen, 1).plans
            seen.append(self.measure(plan))
            if (seen[-1].score or 0.0) >= goal:
                break
        return len(seen)


@pytest.fixture(scope="session")
def landscape() -> Landscape:
    bounds = Bounds(
        pp=(1, 2, 4, 8),
        micro_batch_size=(1, 2, 4, 8),
        cp=(1, 2),
        vpp=(1, 3),
        schedule=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
        recompute=tuple(Recompute),
    )
    return Landscape(make_space(8, 512, bounds))


@pytest.fixture(scope="session")
def space() -> Space:
    """69 plans with every kind of dimension: degrees, a stage, two categories; small enough to exhaust."""
    return make_space(1, 16, Bounds(zero_stage=(0, 1), schedule=(Schedule.ONE_F_ONE_B, Schedule.GPIPE)))


@pytest.fixture(scope="session")
def make() -> Callable[[int, int | None, Bounds], Space]:
    return make_space


@pytest.fixture(scope="session")
def task() -> Callable[..., Task]:
    return task_of
