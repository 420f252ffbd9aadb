"""What the REST API shows of one plan, which nobody need have run, and of other node counts: predicted alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.api.schemas.quote import BasisView, PredictionView
from meshtune.runners.documents import read_value
from meshtune.search_spaces.physics.estimates import TimePart
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space_context import Violation
from meshtune.tuner.prediction.explain_plan import Explanation
from meshtune.tuner.prediction.scaling import MeasuredBest, Projection, Run, Scaling, Wall


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyView:
    """Why a plan is not the best one, or that it is. violations: the rules that it breaks. trial: the one of the
    campaign that has this plan. prediction: null where the formulas say nothing of it, for the reason in `unpredicted`.
    rank: its place by prediction among `of` legal plans, or the place that it would have. differences_s: seconds per
    step that a part takes more than with `best`, the plan predicted best; the largest first."""

    plan: Plan
    plan_key: str
    legal: bool
    violations: list[Violation]
    trial: int | None
    prediction: PredictionView | None
    unpredicted: str
    rank: int | None
    of: int
    best: PredictionView
    differences_s: Mapping[TimePart, float]
    basis: BasisView


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """One node count. best: null where there is no plan, for the `reason`. speedup, efficiency: against the reference,
    prediction by prediction."""

    scaling: Scaling
    nodes: int
    devices: int
    global_batch_size: int | None
    best: PredictionView | None
    reason: str
    speedup: float | None
    efficiency: float | None
    run: Run | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionView:
    """The same as `meshtune project --json`: the best plan and its efficiency at other node counts. walls: where each
    kind of scaling falls below `least_efficiency`."""

    name: str
    model: str
    device: str
    reference_nodes: int
    measured_best: MeasuredBest | None
    rows: list[RowView]
    walls: list[Wall]
    least_efficiency: float
    tokens: float | None
    basis: BasisView


def why_view(found: Explanation, trial: int | None) -> WhyView:
    document = found.document()
    return read_value(WhyView, {"violations": document.pop("broken"), "trial": trial, **document})


def projection_view(found: Projection) -> ProjectionView:
    return read_value(ProjectionView, found.document())
