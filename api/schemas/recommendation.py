"""What the REST API shows of the best known plan: the shape of `BestKnown.document()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.runners.documents import read_value
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.results.known_best import BestKnown, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """A campaign that the answer rests on, with its own best plan, which was measured (or simulated) there. differs: in
    what it is not what was asked for; empty where it is. confirmed: it was measured twice."""

    campaign: str
    trial: int
    plan_key: str
    model: str
    cluster: str
    nodes: int
    tokens_per_s: Estimate
    confirmed: bool
    software: Mapping[str, str]
    differs: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnownView:
    """The best known plan. measured: this very plan ran there; otherwise tokens_per_s is a prediction with its 95 %
    interval, and p_fits the probability that the plan fits the devices (null for a plan that ran). environment: the
    same for a job script."""

    model: str
    cluster: str
    nodes: int
    standing: Standing
    measured: bool
    plan: Plan
    plan_key: str
    devices: int
    global_batch_size: int
    workload: str
    tokens_per_s: Estimate
    p_fits: float | None
    reason: str
    sources: list[SourceView]
    environment: Mapping[str, str]


def best_known_view(found: BestKnown) -> BestKnownView:
    return read_value(BestKnownView, found.document())
