"""Why a plan is not the best one: the rules it breaks, the memory it needs, and the parts of the step that take longer.

For any plan that can be written down, legal or not. Predicted, never measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.estimates import TimePart
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.search_spaces.space_context import Violation
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.prediction.predict import Basis, Prediction, Predictions, foresee, training_of

PART_WORDS: dict[TimePart, str] = {
    TimePart.COMPUTE: "computation",
    TimePart.RECOMPUTE: "recomputation",
    TimePart.TP: "tensor-parallel communication",
    TimePart.CP: "context-parallel communication",
    TimePart.EP: "expert-parallel communication",
    TimePart.SEND_RECEIVE: "sending between stages",
    TimePart.BUBBLE: "pipeline bubble",
    TimePart.DP: "data-parallel communication",
    TimePart.OPTIMIZER: "optimizer",
}
# Differences below this share of the compared step are left out.
MIN_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One plan against the plan predicted best. violations: the rules that it breaks. trial: the campaign's trial of
    this plan. prediction: null where the formulas do not hold, for the reason in `unpredicted`. rank: its place by
    prediction among `of` legal plans, or the place that it would have. differences_s: seconds per step that a part
    takes more than with `best`, scaled to its batch, the largest difference first; empty where times are unknown."""

    plan: Plan
    plan_key: str
    legal: bool
    violations: tuple[Violation, ...]
    trial: int | None
    prediction: Prediction | None
    unpredicted: str
    rank: int | None
    of: int
    best: Prediction
    differences_s: Mapping[TimePart, float]
    basis: Basis


def explain(spec: CampaignSpec, space: Space, plan: Plan, basis: Basis, trial: int | None = None) -> Explanation:
    """The explanation of `plan`, the best one included. trial: its number in the campaign."""
    outlook = foresee(training_of(spec), space.columns, basis.calibration)
    first = int(outlook.best(1)[0])
    best = outlook.of(first, space[first])
    own, unpredicted = _foresee_one(spec, plan, basis)
    prediction = None if own is None else own.of(0, plan)
    violations = tuple(space.explain(plan))
    return Explanation(
        plan=plan,
        plan_key=plan.key,
        legal=not violations,
        violations=violations,
        trial=trial,
        prediction=prediction,
        unpredicted=unpredicted,
        rank=None if own is None else 1 + int(np.sum(outlook.score > own.score[0] * (1 + 1e-9))),
        of=len(space),
        best=best,
        differences_s={} if prediction is None else _differences_s(prediction, best),
        basis=basis,
    )


def _foresee_one(spec: CampaignSpec, plan: Plan, basis: Basis) -> tuple[Predictions | None, str]:
    """The outlook of one plan; or None and the reason, where its shapes make no sense."""
    if plan.world_size != spec.cluster.devices:
        return None, f"it is for {plan.world_size} devices, and the cluster has {spec.cluster.devices}"
    with np.errstate(all="ignore"):
        own = foresee(training_of(spec), columns_of([plan]), basis.calibration)
    numbers = [own.memory.peak_bytes, own.memory.log_sd, own.score]
    numbers += [] if own.time is None else [own.time.step_s, own.time.log_sd]
    if not all(np.isfinite(column[0]) for column in numbers):
        return None, "the formulas do not hold for its shapes"
    return own, ""


def _differences_s(own: Prediction, best: Prediction) -> dict[TimePart, float]:
    if own.speed is None or best.speed is None:
        return {}
    # With a freed batch the steps of two plans are of different sizes.
    scale = best.plan.global_batch_size / own.plan.global_batch_size
    more_s = {part: time_s * scale - best.speed.parts_s[part] for part, time_s in own.speed.parts_s.items()}
    ordered = sorted(more_s.items(), key=lambda item: -abs(item[1]))
    return {part: more for part, more in ordered if abs(more) >= MIN_SHARE * best.speed.step_s.value}
