"""Of the newer axes (schedules, recomputation, context and expert parallelism) only right, distinct plans are legal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from places import cluster

from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.job import Job, require_supported
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import Capabilities, SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space

DENSE = ModelSpec(name="d", layers=8, hidden=64, heads=8, kv_heads=4, ffn=128, vocab=256, seq_len=64)
MIXTURE = replace(DENSE, name="m", experts=4, top_k=2)
ABLE = TorchWorkload({}).capabilities
WIDE = Bounds(
    cp=(1, 2, 4),
    ep=(1, 2, 4),
    vpp=(1, 2, 4),
    micro_batch_size=(1, 2),
    recompute=tuple(Recompute),
    schedule=tuple(Schedule),
    sequence_parallel=(True, False),
    recompute_interval=(1, 2),
    context=tuple(ContextParallel),
)


def space(
    model: ModelSpec = DENSE,
    bounds: Bounds = WIDE,
    kind: DeviceKind = DeviceKind.CPU,
    able: Capabilities = ABLE,
    batch: int | None = 16,
) -> Space:
    place = cluster(1, 8, kind)
    return Space(bounds, SpaceContext(model=model, cluster=place, global_batch_size=batch, capabilities=able))


@pytest.mark.parametrize("model", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("kind", DeviceKind)
def test_the_trainer_supports_every_plan_that_the_space_allows(model, kind):
    plans = space(model, kind=kind)
    assert len(plans) > 1000
    for plan in plans:
        require_supported(Job(name="x", model=model, plan=plan, device=kind))
