"""What the physics says of a task's plans, each worked out once.

It is all that a search keeps between its asks: the task alone says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import Columns, columns_of
from meshtune.search_spaces.columns import rows as columns_at
from meshtune.search_spaces.physics.estimates import Training
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.physics.prior import Rows, stack

# Plans whose slopes are worked out at once.
MAX_SLOPED = 20_000


class RowsOf(Protocol):
    """As `prior.rows_of`."""

    def __call__(self, training: Training, columns: Columns, campaign: int = 0, *, sloped: bool = True) -> Rows: ...


@dataclass(slots=True)
class _Told:
    """Rows of plans of one campaign; places: of each that was asked for."""

    rows: Rows
    places: dict[Plan, int] = field(default_factory=dict)


class Catalogue:
    """Of one task. legal: the rows of its space. complete: with slopes, as where there are at most `MAX_SLOPED`."""

    def __init__(self, task: Task, rows_of: RowsOf) -> None:
        self.task = task
        self._rows_of = rows_of
        self.complete = len(task.space) <= MAX_SLOPED
        self.legal = rows_of(task.training, task.space.columns, sloped=self.complete)
        self._places: dict[Plan, int | None] = {}
        self._told: dict[int, _Told] = {}

    def place(self, plan: Plan) -> int | None:
        """The position of the plan in the space, None for one that is not legal."""
        if plan not in self._places:
            space = self.task.space
            self._places[plan] = space.index_of(plan) if plan in space else None
        return self._places[plan]

    def unseen(self, plans: Sequence[Plan]) -> npt.NDArray[np.int64]:
        """The positions in the space of all but these plans."""
        free = np.ones(len(self.task.space), dtype=np.bool_)
        free[[place for plan in plans if (place := self.place(plan)) is not None]] = False
        return np.flatnonzero(free)

    def sloped(self, index: npt.NDArray[np.int64]) -> Rows:
        """These rows of the space, with their slopes."""
        if self.complete:
            return self.legal.take(index)
        return self._rows_of(self.task.training, columns_at(self.task.space.columns, index))

    def rows(self, plans: Sequence[Plan], campaign: int = 0) -> Rows:
        """The rows of any plans, with their slopes. campaign: 0 for the task's own, 1 for the first of its past."""
        told = self._told.get(campaign) or self._nothing_told(campaign)
        new = [plan for plan in dict.fromkeys(plans) if plan not in told.places and not self._find(plan, campaign)]
        if new:
            told.places.update((plan, len(told.rows) + row) for row, plan in enumerate(new))
            told.rows = stack([told.rows, self._work_out(new, campaign)])
        return told.rows.take(np.array([told.places[plan] for plan in plans], dtype=np.int64))

    def _nothing_told(self, campaign: int) -> _Told:
        listed = self.complete and campaign == 0
        return self._told.setdefault(campaign, _Told(self.legal if listed else self._work_out([], campaign)))

    def _find(self, plan: Plan, campaign: int) -> bool:
        """True for a plan that stands among the legal ones, which are worked out already."""
        place = self.place(plan) if self.complete and campaign == 0 else None
        if place is not None:
            self._told[campaign].places[plan] = place
        return place is not None

    def _work_out(self, plans: Sequence[Plan], campaign: int) -> Rows:
        training = self.task.past[campaign - 1].training if campaign else self.task.training
        return self._rows_of(training, columns_of(plans), campaign)
