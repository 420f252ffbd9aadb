"""A campaign's history for a surrogate search: observations, plans under way, and plans left to propose.

A plan that was cancelled or lost teaches nothing and is still not proposed again. A plan outside of the space (a
user's present setting) teaches where it has features (`Encoding.encode`), and is passed over where it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from meshtune.runners.outcome import Verdict
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.encoding import Encoding, Features, IntArray


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation. score None: the plan failed, in the way that `verdict` names. peak_bytes: of all the device's
    memory where the peak is unknown."""

    features: Features
    verdict: Verdict
    score: float | None
    peak_bytes: float


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
    def observed(self) -> int:
        """Observations made or under way."""
        return len(self.told) + len(self.pending)

    @property
    def scores(self) -> list[float]:
        return [told.score for told in self.told if told.score is not None]


def read_history(task: Task, seen: Sequence[Observation]) -> History:
    """The history of one campaign. Scores that are no finite number (a broken score) are passed over."""
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
            told.append(Sample(features, one.verdict, one.score, one.peak_bytes or device_bytes))
    return History(task.pareto, encoding, told, pending, np.flatnonzero(~free), np.flatnonzero(free))
