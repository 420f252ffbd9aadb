"""The physics' rows of a task's plans: all that a search keeps between its asks, since the task alone determines it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import Columns, columns_of
from meshtune.search_spaces.columns import rows as columns_at
from meshtune.search_spaces.physics.estimates import Training
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.physics.prior import Rows

# Plans whose slopes are worked out at once.
MAX_SLOPED = 20_000


class RowsOf(Protocol):
    """As `prior.rows_of`."""

    def __call__(self, training: Training, columns: Columns, campaign: int = 0, *, sloped: bool = True) -> Rows: ...


class Catalogue:
    """The physics' rows of one task's legal plans; with slopes where there are at most MAX_SLOPED."""

    def __init__(self, task: Task, rows_of: RowsOf) -> None:
        self.task = task
        self._rows_of = rows_of
        self.complete = len(task.space) <= MAX_SLOPED
        self.legal = rows_of(task.training, task.space.columns, sloped=self.complete)

    def unseen(self, plans: Sequence[Plan]) -> npt.NDArray[np.int64]:
        """The positions in the space of all but these plans."""
        space, free = self.task.space, np.ones(len(self.task.space), dtype=np.bool_)
        free[[space.index_of(plan) for plan in set(plans) if plan in space]] = False
        return np.flatnonzero(free)

    def sloped(self, index: npt.NDArray[np.int64]) -> Rows:
        """These rows of the space, with their slopes."""
        if self.complete:
            return self.legal.take(index)
        return self._rows_of(self.task.training, columns_at(self.task.space.columns, index))

    def rows(self, plans: Sequence[Plan], campaign: int = 0) -> Rows:
        """The rows of any plans, with their slopes. campaign: 0 for the task's own, 1 for the first of its past."""
        training = self.task.past[campaign - 1].training if campaign else self.task.training
        return self._rows_of(training, columns_of(plans), campaign)
