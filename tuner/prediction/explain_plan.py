"""Why a plan is not the one: the rules it breaks, the memory it needs, and where it would lose its time.

"Why not X" for any plan that can be written down, legal or not. Predicted, never measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.estimates import TimePart
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.search_spaces.space_context import Violation
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.prediction.predict import Basis, Outlook, Prediction, foresee, training_of

WORDS: dict[TimePart, str] = {
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
# Parts that differ by less than this share of the best plan's step go unmentioned.
LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How many seconds per step of the best plan's batch one part takes more (or less) than with the best plan."""

    part: TimePart
    more_s: float

    def __str__(self) -> str:
        return f"{seconds(abs(self.more_s))} {'more' if self.more_s > 0 else 'less'} {WORDS[self.part]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One plan against the plan predicted best. violations: the rules that it breaks; empty for a legal plan.

    prediction None: the formulas say nothing about it, for the reason in `unpredicted`. rank: its place among the `of`
    legal plans, or the place that it would have; it counts the plans with a better `Outlook.score`. differences: the
    largest first; empty where times are unknown.
    """

    plan: Plan
    violations: tuple[Violation, ...]
    prediction: Prediction | None
    unpredicted: str
    rank: int | None
    of: int
    best: Prediction
    differences: tuple[Difference, ...]
    basis: Basis

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "plan": self.plan.as_dict(),
            "plan_key": self.plan.key,
            "legal": not self.violations,
            "broken": [asdict(violation) for violation in self.violations],
            "prediction": None if self.prediction is None else self.prediction.document(),
            "unpredicted": self.unpredicted,
            "rank": self.rank,
            "of": self.of,
            "best": self.best.document(),
            "differences_s": {str(found.part): found.more_s for found in self.differences},
            "basis": self.basis.document(),
        }


def explain(spec: CampaignSpec, space: Space, plan: Plan, basis: Basis) -> Explanation:
    """Why `plan` is not the best one, or that it is."""
    training = training_of(spec)
    outlook = foresee(training, space.columns, basis.calibration)
    first = int(outlook.best(1)[0])
    best = outlook.of(first, space[first])
    own, unpredicted = _foresee_one(spec, plan, basis)
    return Explanation(
        plan=plan,
        violations=tuple(space.explain(plan)),
        prediction=None if own is None else own.of(0, plan),
        unpredicted=unpredicted,
        rank=None if own is None else 1 + int(np.sum(outlook.score > own.score[0] * (1 + 1e-9))),
        of=len(space),
        best=best,
        differences=() if own is None else _differences(own.of(0, plan), best),
        basis=basis,
    )


def _foresee_one(spec: CampaignSpec, plan: Plan, basis: Basis) -> tuple[Outlook | None, str]:
    """The outlook of one plan; or None and the reason, where shapes do not go up and formulas mean nothing."""
    if plan.world_size != spec.cluster.devices:
        return None, f"it is for {plan.world_size} devices, and the cluster has {spec.cluster.devices}"
    with np.errstate(all="ignore"):
        own = foresee(training_of(spec), columns_of([plan]), basis.calibration)
    numbers = [own.memory.peak_bytes, own.memory.log_sd, own.score]
    numbers += [] if own.time is None else [own.time.step_s, own.time.log_sd]
    if not all(np.isfinite(column[0]) for column in numbers):
        return None, "the formulas do not hold for its shapes"
    return own, ""


def _differences(own: Prediction, best: Prediction) -> tuple[Difference, ...]:
    if own.speed is None or best.speed is None:
        return ()
    # With a freed batch the steps of two plans are of different sizes.
    scale = best.plan.global_batch_size / own.plan.global_batch_size
    found = [
        Difference(part=part, more_s=own.speed.parts_s[part] * scale - best.speed.parts_s[part])
        for part in own.speed.parts_s
    ]
    least_s = LEAST_SHARE * best.speed.step_s.value
    return tuple(sorted((one for one in found if abs(one.more_s) >= least_s), key=lambda one: -abs(one.more_s)))
