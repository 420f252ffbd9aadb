"""Which knob matters: the share of the speed's variance that each one explains alone, by fANOVA through Optuna.

fANOVA (Hutter et al. 2014) fits a random forest to the measured plans and takes the variance of its mean over all other
knobs. PED-ANOVA (Watanabe et al. 2023), Optuna's default, asks another thing: in which knobs the best tenth of the
trials differs from all, and of a campaign's few trials a tenth is one or two plans. `benchmarks/importance.py` compares
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshtune.runners.extras import require_extra
from meshtune.tuner.search.library.encoding import CATEGORIES
from meshtune.tuner.search.library.optuna import quiet_optuna

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

METHOD = "fANOVA"
# One forest for one set of trials, so that a page that is loaded again shows the same.
SEED = 0


def importances(points: Sequence[Mapping[str, Any]], values: Sequence[float]) -> dict[str, float]:
    """The share of each knob, the largest first; they add up to 1. What knobs do together is in none of them.

    points: what each plan has for every knob, which takes at least two values. values: what was reached, one per point
    and not all equal. Raises MissingExtra.
    """
    require_extra("optuna", "the importance of knobs")
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    found = get_param_importances(study_of(points, values), evaluator=FanovaImportanceEvaluator(seed=SEED))
    return {name: float(share) for name, share in found.items()}


def study_of(points: Sequence[Mapping[str, Any]], values: Sequence[float]) -> optuna.Study:
    """The plans as a study in memory, to be maximised.

    Numbers go in as their rank: the forest's mean then gives every value that was tried the same weight.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution
    from optuna.trial import create_trial

    choices = {name: sorted({point[name] for point in points}) for name in points[0]}
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(list(map(str, known)))
        if name in CATEGORIES
        else IntDistribution(0, len(known) - 1)
        for name, known in choices.items()
    }
    with quiet_optuna():
        study = optuna.create_study(direction="maximize")
    for point, value in zip(points, values, strict=True):
        params = {
            name: str(point[name]) if name in CATEGORIES else known.index(point[name])
            for name, known in choices.items()
        }
        study.add_trial(create_trial(params=params, distributions=distributions, value=value))
    return study
