"""Which knobs decide the speed: of the variance among the plans measured so far, the share that each explains alone.

It speaks of those plans only: a search measures where it hopes, and what does not fit has no speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log
from typing import Any

from meshtune.runners.extras import MissingExtra
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.results.analysis.importance import METHOD, importances

# With 8, drawn evenly, fANOVA named the knob that matters most in 6 of 10 cases (docs/explanation/analysis.md).
FEWEST_PLANS = 8


@dataclass(frozen=True, slots=True)
class Importance:
    """share: of the variance that single knobs explain; all shares add up to 1."""

    knob: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """plans: distinct ones that were measured. importances: of the knobs that took several values among them, the
    largest first; empty for the reason in `nothing`."""

    plans: int
    importances: tuple[Importance, ...] = ()
    nothing: str = ""
    method: str = METHOD

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def sensitivity(space: Space, measured: Mapping[Plan, float]) -> Sensitivity:
    """How much each searched dimension matters. measured: tokens per second by plan."""
    plans = len(measured)
    if plans < FEWEST_PLANS:
        return Sensitivity(plans=plans, nothing=f"{plans} measured plans are fewer than {FEWEST_PLANS}: only noise")
    knobs = [name for name in space.dimensions if len({getattr(plan, name) for plan in measured}) > 1]
    if not knobs:
        return Sensitivity(plans=plans, nothing="the measured plans differ in no dimension of the space")
    if len(set(measured.values())) == 1:
        return Sensitivity(plans=plans, nothing="all measured plans are equally fast")
    points = [{name: getattr(plan, name) for name in knobs} for plan in measured]
    try:
        shares = importances(points, [log(speed) for speed in measured.values()])
    except MissingExtra as missing:
        return Sensitivity(plans=plans, nothing=str(missing))
    return Sensitivity(plans=plans, importances=tuple(Importance(name, share) for name, share in shares.items()))
