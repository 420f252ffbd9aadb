"""The physical search with times made wrong on purpose, to see that it finds out: `physics-shuffled` and its like.

shuffled: each setting is expected to take the time of another one, drawn at random. inverted: the fastest is expected
to be the slowest. scaled: differences are three times as large, in logarithms, and all times three times as long.
What is expected of memory stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import Columns
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import PLAN_FIELDS
from meshtune.tuner.search.base import Search
from meshtune.tuner.search.physics.prior import Rows, rows_of
from meshtune.tuner.search.physics.search import PhysicsSearch

WAYS = ("shuffled", "inverted", "scaled")
STRETCHED = 3.0
# What is expected of times.
TIMES = ("log_step", "log_refitted", "log_stalled")


@dataclass(slots=True)
class _Wrong:
    """Takes the place of `rows_of`; the first plans that it is asked for are the space. known: by the plan's fields."""

    way: str
    seed: int
    known: dict[bytes, Rows] = field(default_factory=dict)
    middle: float | None = None

    def __call__(self, training: Training, columns: Columns, campaign: int = 0, **how: Any) -> Rows:
        right = rows_of(training, columns, campaign, **how)
        keys = np.stack([columns[name] for name in PLAN_FIELDS], axis=1)
        if self.middle is None:
            self.middle = float(np.mean(right.log_step))
            wrong = self._distorted(right, self.middle)
            self.known = {key.tobytes(): wrong.take(slice(at, at + 1)) for at, key in enumerate(keys)}
            return wrong
        return self._looked_up(right, keys)

    def _distorted(self, right: Rows, middle: float) -> Rows:
        if self.way == "shuffled":
            order = np.random.default_rng(self.seed).permutation(len(right))
            wrong = {name: getattr(right, name)[order] for name in TIMES}
            slopes = right.step_slopes[order]
            return replace(right, **wrong, step_slopes=slopes, refitted_slopes=slopes)
        if self.way == "inverted":
            wrong = {name: 2 * middle - getattr(right, name) for name in TIMES}
            return replace(right, **wrong, step_slopes=-right.step_slopes, refitted_slopes=-right.step_slopes)
        wrong = {name: middle + STRETCHED * (getattr(right, name) - middle) + log(STRETCHED) for name in TIMES}
        slopes = STRETCHED * right.step_slopes
        return replace(right, **wrong, step_slopes=slopes, refitted_slopes=slopes)

    def _looked_up(self, right: Rows, keys: npt.NDArray[np.int64]) -> Rows:
        wrong = [self.known[key.tobytes()] for key in keys]
        slopes = np.array([row.step_slopes[0] for row in wrong]).reshape(right.step_slopes.shape)
        times = {name: np.array([getattr(row, name)[0] for row in wrong]) for name in TIMES}
        return replace(right, **times, step_slopes=slopes, refitted_slopes=slopes)


def create_wrong(way: str, seed: int) -> Search:
    """A physical search that believes in wrong times."""
    return PhysicsSearch(seed, rows_of=_Wrong(way, seed))


# By the names that the replay knows them under.
WRONG_PRIORS: Mapping[str, str] = {f"physics-{way}": way for way in WAYS}
