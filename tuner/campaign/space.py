"""What a spec's words stand for: its training code, and the plans that are legal for it."""

from __future__ import annotations

from meshtune.runners.registry import create_workload
from meshtune.runners.workloads.base import Workload
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.campaign.spec import CampaignSpec


def workload_of(spec: CampaignSpec) -> Workload:
    """The spec's training code."""
    return create_workload(spec.workload.kind, spec.workload.options)


def space_of(spec: CampaignSpec) -> Space:
    """The spec's space. Raises SpaceTooLarge."""
    return build_space(spec.space, spec.model, spec.cluster, spec.global_batch_size, workload_of(spec))


def build_space(
    bounds: Bounds, model: ModelSpec, cluster: ClusterSpec, global_batch_size: int | None, workload: Workload
) -> Space:
    """The plans that are legal for a model on a cluster with a workload. Raises SpaceTooLarge."""
    setting = SpaceContext(
        model=model,
        cluster=cluster,
        global_batch_size=global_batch_size,
        capabilities=workload.capabilities,
        tp_across_nodes=bounds.tp_across_nodes,
    )
    return Space(bounds, setting)
