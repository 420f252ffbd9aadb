"""Shapley values of knobs: how much of a plan's speed each of them accounts for, exactly, over all coalitions.

A forest learns log(speed) from the measured plans; the value of a coalition of knobs is the forest's mean over the
measured plans with those knobs set as in the plan that is explained, the others as they come (interventional). The
Shapley value of a knob is its mean contribution over all orders in which knobs may join (Lundberg & Lee 2017, "A
Unified Approach to Interpreting Model Predictions", equation 8). With k knobs that is 2^k coalitions, so few knobs
alone; more are refused, not sampled. The values of a plan add up to its prediction minus the mean prediction.

It explains the forest, which knows what was measured: a search measures where it hopes, and failed plans have no speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, factorial
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.runners.extras import MissingExtra, require_extra
from meshtune.search_spaces.changes import value_in, value_word
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.results.analysis.knob_effects import searched
from meshtune.tuner.results.analysis.knob_importance import MIN_PLANS, SEED

METHOD = "SHAP: exact Shapley values (Lundberg & Lee 2017) of a forest of extremely randomised trees"
# 2^10 coalitions of each plan.
MAX_KNOBS = 10
# Plans that are explained, and that stand for all as the background, at most: every (n / so many)-th of them.
MAX_PLANS = 64
TREES = 50
Matrix = npt.NDArray[np.float64]
Predict = Callable[[Matrix], Matrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapley:
    """knobs: e^m - 1 with the mean absolute Shapley value m, of log(speed): the share of the speed that the knob
    accounts for; the one that matters most first; empty for the reason in `nothing`."""

    knobs: Mapping[str, float] = field(default_factory=dict)
    nothing: str = ""


def explain_knobs(space: Space, measured: Mapping[Plan, float]) -> Shapley:
    """The Shapley values of each searched axis and knob. measured: the speed by plan."""
    count = len(measured)
    if count < MIN_PLANS:
        return Shapley(nothing=f"{count} plans with a speed are fewer than {MIN_PLANS}: only noise")
    plans = list(measured)
    columns = {name: [value_in(plan, name) for plan in plans] for name in searched(space)}
    columns = {name: values for name, values in columns.items() if len({*map(value_word, values)}) > 1}
    if not columns:
        return Shapley(nothing="the plans with a speed differ in no dimension of the space")
    if len(columns) > MAX_KNOBS:
        why = f"{len(columns)} knobs took several values: more than {MAX_KNOBS}, of which all coalitions are looked at"
        return Shapley(nothing=why)
    points = np.column_stack([_places(values) for values in columns.values()])
    try:
        predict = _forest(points, np.log([measured[plan] for plan in plans]))
    except MissingExtra as missing:
        return Shapley(nothing=str(missing))
    few = np.unique(np.linspace(0, count - 1, min(count, MAX_PLANS)).round().astype(np.int64))
    sizes = np.abs(shapley_values(predict, points[few], points[few])).mean(axis=0)
    ordered = sorted(zip(columns, sizes.tolist(), strict=True), key=lambda pair: -pair[1])
    return Shapley(knobs={name: exp(size) - 1 for name, size in ordered})


def shapley_values(predict: Predict, points: Matrix, background: Matrix) -> Matrix:
    """One row per point, one column per feature. predict: of rows of features. Exact, over 2^features coalitions."""
    features = points.shape[1]
    worth = np.empty((2**features, len(points)))
    for coalition in range(2**features):
        inside = np.array([coalition >> at & 1 for at in range(features)], dtype=np.bool_)
        mixed = np.where(inside, points[:, None, :], background[None, :, :])
        worth[coalition] = predict(mixed.reshape(-1, features)).reshape(len(points), len(background)).mean(axis=1)
    weight = [factorial(size) * factorial(features - size - 1) / factorial(features) for size in range(features)]
    values = np.zeros((len(points), features))
    for coalition in range(2**features):
        for at in range(features):
            if not coalition >> at & 1:
                gained = worth[coalition | 1 << at] - worth[coalition]
                values[:, at] += weight[coalition.bit_count()] * gained
    return values


def _forest(points: Matrix, logs: Matrix) -> Predict:
    """Raises MissingExtra."""
    require_extra("optuna", "the Shapley values of knobs")
    from sklearn.ensemble import ExtraTreesRegressor

    forest: Any = ExtraTreesRegressor(n_estimators=TREES, random_state=SEED)
    forest.fit(points, logs)

    def predict(rows: Matrix) -> Matrix:
        # Of the few distinct rows: coalitions repeat them.
        distinct, back = np.unique(rows, axis=0, return_inverse=True)
        speeds: Matrix = forest.predict(distinct)[back.reshape(-1)]
        return speeds

    return predict


def _places(values: Sequence[Any]) -> Matrix:
    """Numbers by the logarithm of 2 where all are positive, else by their order; what is no number by its word's."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) and value > 0 for value in values):
        return np.log2(np.array(values, dtype=np.float64))
    known = sorted({*map(value_word, values)})
    return np.array([known.index(value_word(value)) for value in values], dtype=np.float64)
