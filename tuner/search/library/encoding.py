"""Plans and a campaign's history as a surrogate sees them: one feature per searched dimension, and the way back.

Searched is a dimension of the space that takes more than one value over the legal plans. Degrees and sizes are log2
(cost is made of products and ratios of them), the ZeRO stage is an ordinal, sequence parallelism is 0 or 1, and
recompute, schedule and context are categories.
Derived fields (dp; grad_accum_steps under a fixed global batch) follow from the others and would only repeat them.

A plan that was cancelled or lost teaches nothing and is still not proposed again. A plan outside of the space (a
user's present setting) teaches where it has features (`Encoding.encode`), and is passed over where it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import MEMBERS
from meshtune.search_spaces.plan import AXES, Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.base import Observation, Task

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Feature = float | str
Features = dict[str, Feature]

CATEGORIES: Mapping[str, tuple[str, ...]] = {name: tuple(map(str, members)) for name, members in MEMBERS.items()}
FACTORS = frozenset(axis.name for axis in AXES if axis.is_factor)
# What a model is told of poor plans, as shares of the span from the median to the best success: the lower half of the
# successes lies within POOR, a failed plan FAILED below that, and again for each doubling of the usable memory that it
# lacks, up to so many. Lower values keep a model away from good plans beside poor ones (docs/log.md).
POOR, FAILED, MOST_EXCESS = 0.1, 0.1, 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """Every legal plan of one space as features.

    choices: the features that each searched dimension takes, ascending. ranks: one row per plan, the position of each
    feature among its choices. fixed: the value of every dimension that takes only one.
    """

    choices: Mapping[str, tuple[Feature, ...]]
    fixed: Mapping[str, Feature]
    ranks: IntArray
    _order: IntArray
    _sorted_codes: IntArray

    @classmethod
    def of(cls, space: Space) -> Encoding:
        choices: dict[str, tuple[Feature, ...]] = {}
        fixed: dict[str, Feature] = {}
        ranks: list[IntArray] = []
        for name in space.dimensions if len(space) else ():
            values, positions = np.unique(space.columns[name], return_inverse=True)
            # Categories stand in columns as the index of their member.
            known = CATEGORIES.get(name)
            features = tuple(known[value] if known else _feature(name, int(value)) for value in values)
            if len(features) == 1:
                fixed[name] = features[0]
                continue
            choices[name] = features
            ranks.append(positions.astype(np.int64))
        rows = np.stack(ranks, axis=1) if ranks else np.zeros((len(space), 0), dtype=np.int64)
        codes = rows @ _strides(choices)
        order = np.argsort(codes, kind="stable")
        encoding = cls(choices, fixed, rows, order, codes[order])
        # What is left out must follow from what is searched, else two plans would be one to the surrogate.
        assert np.all(np.diff(encoding._sorted_codes) > 0), f"{sorted(choices)} do not identify a plan"
        return encoding

    def features(self, index: int) -> Features:
        return {
            name: features[rank]
            for (name, features), rank in zip(self.choices.items(), self.ranks[index].tolist(), strict=True)
        }

    def encode(self, plan: Plan) -> Features | None:
        """The plan's features; None where a value is not among the choices or differs from a fixed one.

        A plan outside of the space may have features; they may even be those of a legal plan, which `index_of` gives.
        """
        if any(_feature(name, getattr(plan, name)) != feature for name, feature in self.fixed.items()):
            return None
        features = {name: _feature(name, getattr(plan, name)) for name in self.choices}
        return None if any(feature not in self.choices[name] for name, feature in features.items()) else features

    def index_of(self, features: Mapping[str, Any]) -> int | None:
        """The position in the space of the plan with these features, None where there is no such legal plan."""
        code = int(np.array(self._ranks_of(features), dtype=np.int64) @ _strides(self.choices))
        found = int(np.searchsorted(self._sorted_codes, code))
        if found == len(self._sorted_codes) or self._sorted_codes[found] != code:
            return None
        return int(self._order[found])

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
            if name in CATEGORIES:
                # sqrt(1/2) in one column per category: two different categories are then exactly 1 apart.
                columns.extend((column == rank) * np.sqrt(0.5) for rank in range(len(features)))
            else:
                values = np.array([float(feature) for feature in features])
                columns.append(((values - values[0]) / (values[-1] - values[0]))[column])
        return np.stack(columns, axis=1) if columns else np.zeros((len(ranks), 0))


def _strides(choices: Mapping[str, tuple[Feature, ...]]) -> IntArray:
    sizes = [len(features) for features in choices.values()]
    return np.array([int(np.prod(sizes[position + 1 :])) for position in range(len(sizes))], dtype=np.int64)


def _feature(name: str, value: Any) -> Feature:
    if name in CATEGORIES:
        return str(value)
    return float(np.log2(value)) if name in FACTORS else float(value)


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
    """pareto: peak memory counts beside the score. taken, unseen: positions in the space; together they are the whole
    space."""

    pareto: bool
    encoding: Encoding
    told: Sequence[Sample]
    pending: Sequence[Features]
    taken: IntArray
    unseen: IntArray

    @property
    def scores(self) -> list[float]:
        return [told.score for told in self.told if told.score is not None]

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
            for one in self.told
        ]


def read_history(task: Task, seen: Sequence[Observation], excess: Mapping[Plan, float]) -> History:
    """The history of one campaign. excess: of each plan seen, see Sample. Scores that are no finite number (a broken
    score) are passed over."""
    space, device_bytes = task.space, task.training.cluster.device.memory_bytes
    encoding = Encoding.of(space)
    told: list[Sample] = []
    pending: list[Features] = []
    free = np.ones(len(space), dtype=np.bool_)
    for one in seen:
        features = encoding.encode(one.plan)
        index = None if features is None else encoding.index_of(features)
        if features is None or (index is not None and space[index] != one.plan):
            continue
        if index is not None:
            free[index] = False
        if one.verdict is None:
            pending.append(features)
        elif one.verdict.informative and (one.score is None or isfinite(one.score)):
            peak_bytes = one.peak_bytes or device_bytes
            told.append(Sample(features, one.verdict, one.score, peak_bytes, excess[one.plan]))
    return History(task.pareto, encoding, told, pending, np.flatnonzero(~free), np.flatnonzero(free))
