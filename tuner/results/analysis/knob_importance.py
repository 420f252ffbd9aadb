"""Knob importance: the share of the measured plans' variance in speed that each knob explains alone, by fANOVA.

fANOVA (Hutter et al. 2014), through Optuna, fits a random forest to the measured plans and takes the variance of its
mean over all other knobs. PED-ANOVA (Watanabe et al. 2023), Optuna's default, asks in which knobs the best tenth of the
trials differs from all; a tenth of a campaign's few trials is one or two plans. `benchmarks/importance.py` compares
them. Only measured plans count: a search measures where it hopes, and a plan that does not fit has no speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

from meshtune.runners.extras import MissingExtra, require_extra
from meshtune.search_spaces.knob import KnobKind
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.results.analysis.knob_effects import searched
from meshtune.tuner.search.library.encoding import CATEGORIES
from meshtune.tuner.search.library.optuna import quiet_optuna

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

METHOD = "fANOVA"
# One forest for one set of trials, so that a page that is loaded again shows the same.
SEED = 0
# With 8, drawn evenly, fANOVA named the knob that matters most in 6 of 10 cases (docs/explanation/analysis.md).
MIN_PLANS = 8


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


def sensitivity(space: Space, measured: Mapping[Plan, float]) -> Sensitivity:
    """The importance of each searched axis and knob. measured: the speed by plan. A knob that is inactive in a plan
    counts as its default there."""
    plans = len(measured)
    if plans < MIN_PLANS:
        return Sensitivity(plans=plans, nothing=f"{plans} plans with a speed are fewer than {MIN_PLANS}: only noise")
    features = {name: [_feature(space, plan, name) for plan in measured] for name in searched(space)}
    features = {name: values for name, values in features.items() if len(set(values)) > 1}
    if not features:
        return Sensitivity(plans=plans, nothing="the plans with a speed differ in no dimension of the space")
    if len(set(measured.values())) == 1:
        return Sensitivity(plans=plans, nothing="all plans with a speed are equally fast")
    points = [dict(zip(features, values, strict=True)) for values in zip(*features.values(), strict=True)]
    try:
        shares = importances(points, [log(speed) for speed in measured.values()])
    except MissingExtra as missing:
        return Sensitivity(plans=plans, nothing=str(missing))
    return Sensitivity(plans=plans, importances=tuple(Importance(name, share) for name, share in shares.items()))


def _feature(space: Space, plan: Plan, name: str) -> Any:
    """What the forest is told: an axis' value; of a knob a word where its values are not alike, else its place."""
    knob = space.knobs.named(name)
    if knob is None:
        return getattr(plan, name)
    place = knob.position(plan.knobs.get(name, knob.default)) or 0
    return str(place) if knob.kind is KnobKind.CATEGORICAL else place


def importances(points: Sequence[Mapping[str, Any]], values: Sequence[float]) -> dict[str, float]:
    """The share of each knob, the largest first, without what knobs do together; they add up to 1.

    points: the knobs of each plan, each with at least two values. values: one per point and not all equal.
    Raises MissingExtra.
    """
    require_extra("optuna", "the importance of knobs")
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    shares = get_param_importances(study_of(points, values), evaluator=FanovaImportanceEvaluator(seed=SEED))
    return {name: float(share) for name, share in shares.items()}


def study_of(points: Sequence[Mapping[str, Any]], values: Sequence[float]) -> optuna.Study:
    """The plans as a study in memory, to be maximised.

    Numbers go in as their rank: the forest's mean then gives every value that was tried the same weight.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution
    from optuna.trial import create_trial

    choices = {name: sorted({point[name] for point in points}) for name in points[0]}
    # An axis by its name; a knob by the words that stand for its places.
    words = [name for name, known in choices.items() if name in CATEGORIES or type(known[0]) is str]
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(list(map(str, known))) if name in words else IntDistribution(0, len(known) - 1)
        for name, known in choices.items()
    }
    with quiet_optuna():
        study = optuna.create_study(direction="maximize")
    for point, value in zip(points, values, strict=True):
        params = {name: str(point[name]) if name in words else choices[name].index(point[name]) for name in choices}
        study.add_trial(create_trial(params=params, distributions=distributions, value=value))
    return study
