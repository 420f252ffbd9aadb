"""Plans and a campaign's history as a surrogate sees them: one feature per searched dimension, and the way back.

Searched is a dimension of the space that takes more than one value over the legal plans. Degrees and sizes are log2
(cost is made of products and ratios of them), of zero_group and etp the ratio to the usual degree is, the ZeRO stage is
an ordinal, sequence parallelism is 0 or 1, and recompute, schedule and context are categories.
Derived fields (dp; grad_accum_steps under a fixed global batch) follow from the others and would only repeat them.

A knob is one feature, too: a category, the rank of an ordered value, or a number, log2 where the values span a factor
of 4 or more. Where it is inactive it has the feature of its default.

A plan that was cancelled or lost teaches nothing and is still not proposed again. A plan outside of the space (a
user's present plan) teaches where it has features (`Encoding.encode`), and is passed over where it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import MEMBERS, RATIOS
from meshtune.search_spaces.knob import Knob, KnobKind
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.listing import Listing
from meshtune.search_spaces.plan import AXES, Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.base import Observation, Task

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Feature = float | str
Features = dict[str, Feature]

CATEGORIES: Mapping[str, tuple[str, ...]] = {name: tuple(map(str, members)) for name, members in MEMBERS.items()}
# Numbers of a knob that span this factor count by their logarithms.
WIDE = 4
FACTORS = frozenset({*(axis.name for axis in AXES if axis.is_factor), *RATIOS})
# What a model is told of poor plans, as shares of the span from the median to the best success: the lower half of the
# successes lies within POOR, a failed plan FAILED below that, and again for each doubling of the usable memory that it
# lacks, up to so many. Lower values keep a model away from good plans beside poor ones (benchmarks/log.md).
POOR, FAILED, MOST_EXCESS = 0.1, 0.1, 1.0
# The share of the weighed sum beside the weighed minimum, as in ParEGO.
AUGMENTED = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """Every legal plan of one space as features, or every plan of a listing.

    choices: the features that each searched dimension takes, ascending. ranks: one row per plan, the position of each
    feature among its choices. fixed: the value of every dimension that takes only one. categories: the dimensions
    whose features are words.
    """

    choices: Mapping[str, tuple[Feature, ...]]
    fixed: Mapping[str, Feature]
    ranks: IntArray
    categories: frozenset[str]
    _knobs: Mapping[str, Knob]
    # The position of each row of ranks, by its bytes.
    _positions: Mapping[bytes, int]

    @classmethod
    def of(cls, plans: Space | Listing, names: Sequence[str] | None = None) -> Encoding:
        """names: the dimensions that count, which must tell the plans apart; None: all."""
        choices: dict[str, tuple[Feature, ...]] = {}
        fixed: dict[str, Feature] = {}
        ranks: list[IntArray] = []
        for name in (plans.dimensions if names is None else names) if len(plans) else ():
            features, positions = _column(plans, name)
            if len(features) == 1:
                fixed[name] = features[0]
                continue
            choices[name] = features
            ranks.append(positions.astype(np.int64))
        rows = np.stack(ranks, axis=1) if ranks else np.zeros((len(plans), 0), dtype=np.int64)
        places = {row.tobytes(): at for at, row in enumerate(rows)}
        # What is left out must follow from what is searched, else two plans would be one to the surrogate.
        assert len(places) == len(rows), f"{sorted(choices)} do not identify a plan"
        words = frozenset(name for name, features in choices.items() if isinstance(features[0], str))
        return cls(choices, fixed, rows, words, {knob.name: knob for knob in plans.knobs}, places)

    def features(self, index: int) -> Features:
        return {
            name: features[rank]
            for (name, features), rank in zip(self.choices.items(), self.ranks[index].tolist(), strict=True)
        }

    def encode(self, plan: Plan) -> Features | None:
        """The plan's features; None where a value is not among the choices or differs from a fixed one.

        A plan outside of the space may have features; they may even be those of a legal plan, which `index_of` gives.
        """
        if any(self._feature(name, plan) != feature for name, feature in self.fixed.items()):
            return None
        every = {name: self._feature(name, plan) for name in self.choices}
        features = {name: feature for name, feature in every.items() if feature in self.choices[name]}
        return features if len(features) == len(every) else None

    def _feature(self, name: str, plan: Plan) -> Feature | None:
        """None for a value that the knob does not have."""
        if name not in self._knobs:
            return _feature(name, RATIOS[name](plan.axes_as_dict()) if name in RATIOS else getattr(plan, name))
        knob = self._knobs[name]
        place = knob.position(plan.knobs.get(name, knob.default))
        return None if place is None else _knob_features(knob)[place]

    def codes_of(self, features: Features) -> dict[str, int]:
        """The codes of the knobs that these features stand for."""
        known = {name: knob for name, knob in self._knobs.items() if name in features}
        return {name: _knob_features(knob).index(features[name]) + 1 for name, knob in known.items()}

    def index_of(self, features: Mapping[str, Any]) -> int | None:
        """The position among the plans of the one with these features, None where there is no such plan."""
        return self._positions.get(np.array(self._ranks_of(features), dtype=np.int64).tobytes())

    def points(self) -> FloatArray:
        """One row per plan, for distances: every searched dimension spans 0 to 1, and two categories are 1 apart."""
        return self._points(self.ranks)

    def point(self, features: Mapping[str, Any]) -> FloatArray:
        """Where `features` lie among `points`."""
        row: FloatArray = self._points(np.array([self._ranks_of(features)], dtype=np.int64))[0]
        return row

    def _ranks_of(self, features: Mapping[str, Any]) -> list[int]:
        return [known.index(features[name]) for name, known in self.choices.items()]

    def _points(self, ranks: IntArray) -> FloatArray:
        columns: list[FloatArray] = []
        for position, (name, features) in enumerate(self.choices.items()):
            column = ranks[:, position]
            if name in self.categories:
                # sqrt(1/2) in one column per category: two different categories are then exactly 1 apart.
                columns.extend((column == rank) * np.sqrt(0.5) for rank in range(len(features)))
            else:
                values = np.array([float(feature) for feature in features])
                columns.append(((values - values[0]) / (values[-1] - values[0]))[column])
        return np.stack(columns, axis=1) if columns else np.zeros((len(ranks), 0))


def _column(plans: Space | Listing, name: str) -> tuple[tuple[Feature, ...], IntArray]:
    """The features that a dimension takes, ascending, and the position of each plan's among them."""
    knob = plans.knobs.named(name)
    if knob is not None and isinstance(plans, Listing):
        by_value = _knob_features(knob)
        features = tuple(sorted(by_value))
        default = knob.position(knob.default) or 0
        # By code: that of an inactive knob, then those of its values.
        ranks = np.array([features.index(by_value[at]) for at in (default, *range(len(by_value)))], dtype=np.int64)
        return features, ranks[plans.columns[name]]

    def column(of: Space | Listing) -> npt.NDArray[Any]:
        return RATIOS[name](of.columns) if name in RATIOS else of.columns[name]

    # Values that no plan of a listing has may come up in the history.
    values = np.unique(column(plans.space if isinstance(plans, Listing) else plans))
    # Categories stand in columns as the index of their member.
    known = CATEGORIES.get(name)
    words = tuple(known[value] if known else _feature(name, value) for value in values)
    return words, np.searchsorted(values, column(plans))


def _feature(name: str, value: Any) -> Feature:
    if name in CATEGORIES:
        return str(value)
    return float(np.log2(value)) if name in FACTORS else float(value)


def _knob_features(knob: Knob) -> list[Feature]:
    """Of a knob's values, in their order."""
    if knob.kind is KnobKind.ORDERED:
        return [float(rank) for rank in range(len(knob.values))]
    numbers = [float(value) for value in knob.values if not isinstance(value, str | bool)]
    if knob.kind is not KnobKind.NUMERIC or len(numbers) < len(knob.values):
        words = [word(value) for value in knob.values]
        # 1 and the word "1" are two values.
        return [*words] if len(set(words)) == len(words) else [repr(value) for value in knob.values]
    wide = min(numbers) > 0 and max(numbers) >= WIDE * min(numbers)
    return [float(np.log2(number)) if wide else number for number in numbers]


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation. score None: the plan failed, in the way that `verdict` names. peak_bytes: of all the device's
    memory where the peak is unknown. excess: log2 of the peak over the usable memory, as believed."""

    features: Features
    verdict: Verdict
    score: float | None
    peak_bytes: float
    excess: float


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """pareto: peak memory counts beside the score. plans: the space, or a listing of its plans. taken, unseen:
    positions among them; together they are all."""

    pareto: bool
    plans: Space | Listing
    encoding: Encoding
    samples: Sequence[Sample]
    pending: Sequence[Features]
    taken: IntArray
    unseen: IntArray

    @property
    def scores(self) -> list[float]:
        return [one.score for one in self.samples if one.score is not None]

    def traded_off(self, seed: int) -> list[float]:
        """Score and peak memory of each success as one number, weighed against each other at random, anew at every
        ask: the augmented Chebyshev function of both, each between its extremes (Knowles 2006, ParEGO)."""
        values = np.array([(one.score, -one.peak_bytes) for one in self.samples if one.score is not None])
        if not len(values):
            return []
        span = np.ptp(values, axis=0)
        shares = (values - values.min(axis=0)) / np.where(span > 0, span, 1.0)
        weight = np.random.default_rng(seed).random()
        weighed = shares * (weight, 1.0 - weight)
        worths: list[float] = (weighed.min(axis=1) + AUGMENTED * weighed.sum(axis=1)).tolist()
        return worths

    def graded(self, worths: Sequence[float]) -> list[float]:
        """A value to maximise for everything told, of successes these in their order. The half below the median is
        drawn close to it, and a failure is below the worst of them, the further the more memory it lacks. The unit is
        the span from there to the best; where there is none, what the best is worth; without a success 1."""
        best, middle, worst = np.quantile(worths, (1.0, 0.5, 0.0)).tolist() if worths else (0.0, 0.0, 0.0)
        unit = (best - middle) or abs(best) or 1.0
        drawn = POOR * unit / (middle - worst) if middle - worst > POOR * unit else 1.0
        least = middle - drawn * (middle - worst)
        successes = iter([worth if worth >= middle else middle - drawn * (middle - worth) for worth in worths])
        return [
            least - unit * FAILED * (1.0 + min(max(one.excess, 0.0), MOST_EXCESS))
            if one.score is None
            else next(successes)
            for one in self.samples
        ]


def read_history(
    task: Task, seen: Sequence[Observation], excess: Mapping[Plan, float], listing: Listing | None = None
) -> History:
    """The history of one campaign. excess: of each plan seen, see Sample. listing: of the plans to choose from, the
    seen ones among them; None: all of a space without knobs. Scores that are no finite number (a broken score) are
    passed over."""
    device_bytes = task.training.cluster.device.memory_bytes
    plans: Space | Listing = task.space if listing is None else listing
    encoding = Encoding.of(plans)
    samples: list[Sample] = []
    pending: list[Features] = []
    free = np.ones(len(plans), dtype=np.bool_)
    for one in seen:
        features = encoding.encode(one.plan)
        index = None if features is None else encoding.index_of(features)
        if features is None or (index is not None and plans[index] != one.plan):
            continue
        if index is not None:
            free[index] = False
        if one.verdict is None:
            pending.append(features)
        elif one.verdict.informative and (one.score is None or isfinite(one.score)):
            peak_bytes = one.peak_bytes or device_bytes
            samples.append(Sample(features, one.verdict, one.score, peak_bytes, excess[one.plan]))
    return History(task.pareto, plans, encoding, samples, pending, np.flatnonzero(~free), np.flatnonzero(free))
