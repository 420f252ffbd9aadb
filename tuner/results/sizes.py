"""Sizes of jobs: the best measured plan of each in a campaign whose knob sizes them, and how it scales.

Efficiencies are speeds of one device over those of the smallest size that was measured: a scaling curve that a campaign
gives by the way. Pure: a campaign and its ranking in, values out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshtune.search_spaces.knob import SIZES
from meshtune.search_spaces.knobs import KnobSet, sized, sizes_of
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import Objective, yardstick_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.ranking import Ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePoint:
    """The best measured plan of one size. plans: how many of this size were measured. tokens_per_s: of the whole
    job. speedup, efficiency: of the job and of one device, over the smallest size that was measured. cost: of 10^9
    tokens, in cost_unit. speed_unit: of tokens_per_s; samples/s without a model."""

    nodes: int
    devices: int
    plans: int
    trial: int
    plan: Plan
    plan_key: str
    tokens_per_s: Estimate
    tokens_per_s_per_device: Estimate
    speedup: Estimate
    efficiency: Estimate
    cost: float
    cost_unit: str
    speed_unit: str


def scaling_curve(campaign: Campaign, ranking: Sequence[Ranked]) -> tuple[SizePoint, ...]:
    """One point for each size of which a plan may be used, the smallest first; none where all jobs are alike."""
    spec = campaign.spec
    if KnobSet(spec.knobs).size is None:
        return ()
    yardstick = replace(yardstick_of(spec), objective=Objective.COST)
    best: dict[int, Ranked] = {}
    counts: dict[int, int] = {}
    for entry in ranking:
        devices = entry.trial.plan.world_size
        counts[devices] = counts.get(devices, 0) + 1
        if entry.usable:
            best.setdefault(devices, entry)
    points: list[SizePoint] = []
    for devices, entry in sorted(best.items()):
        speed = entry.tokens_per_s
        smallest = best[min(best)]
        share = devices / smallest.trial.plan.world_size
        speedup = entry.over(smallest).as_ratio().times(share if spec.objective.per_device else 1.0)
        points.append(
            SizePoint(
                nodes=sized(spec.cluster, entry.trial.plan).nodes,
                devices=devices,
                plans=counts[devices],
                trial=entry.trial.number,
                plan=entry.trial.plan,
                plan_key=entry.trial.plan.key,
                tokens_per_s=speed,
                tokens_per_s_per_device=speed.times(1 / devices),
                speedup=speedup,
                efficiency=speedup.times(1 / share),
                cost=yardstick.of(entry.measurement, entry.step_time_s),
                cost_unit=yardstick.unit,
                speed_unit=spec.model.worded("tokens/s"),
            )
        )
    return tuple(points)


def node_counts_of(spec: CampaignSpec) -> tuple[int, ...]:
    """The numbers of whole nodes that the campaign's jobs may have, ascending."""
    sizes, per_node = sizes_of(KnobSet(spec.knobs), spec.cluster), spec.cluster.devices_per_node
    if sizes is None:
        return (spec.cluster.nodes,)
    return tuple(sorted(devices // per_node for devices in sizes if devices % per_node == 0))


def on_nodes(spec: CampaignSpec, nodes: int) -> CampaignSpec:
    """The spec of jobs on so many nodes, which no knob sizes."""
    knobs = tuple(knob for knob in spec.knobs if knob.name not in SIZES)
    return replace(spec, cluster=replace(spec.cluster, nodes=nodes), knobs=knobs)
