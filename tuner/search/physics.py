"""The default search: the physics orders the plans, and what was measured corrects it, trial by trial.

Every legal plan is weighed: the expected improvement over the best measured speed, times the probability that the plan
runs, over what its trial costs. The speed is the physics' prediction with a residual that is learnt (`speed`), the
probability is the memory estimate's with a residual of its own (`feasibility`); both hold hypotheses that trust the
physics and some that do not, so that a wrong prior is found out. Plans under way count as measured just as expected.

Exact for all plans as long as plans times observations is moderate (`MOST_WEIGHED`); beyond that the plans are first
ranked by the most telling observations alone, and the best `SCREENED` of them are weighed exactly. All that is kept
between asks is what the task alone says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from search_spaces.columns import rows as columns_at
from search_spaces.plan import Plan
from tuner.search.base import Choice, Proposal, Search, Seen, Task
from tuner.search.belief import PhysicsOptions, believe
from tuner.search.options import parse_options
from tuner.search.prior import Rows, rows_of
from tuner.search.pruning import surely_out_of_memory
from tuner.search.surrogate import derived_seed
from tuner.search.trials import RowsOf, Trials, flat, read_trials
from tuner.search.weighing import Weighing

# Plans times observations that are weighed at once, and plans whose slopes are worked out at once.
MOST_WEIGHED = 3_000_000
MOST_SLOPED = 20_000
SCREENED = 4_000
SCREENED_BY = 24


@dataclass(slots=True)
class _Known:
    """What was worked out for a task, to be used again by the next ask of it. places: of plans in the space."""

    task: Task | None = None
    rows: Rows | None = None
    places: dict[Plan, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PhysicsSearch:
    """Expected improvement under a physical prior. rows_of: what the physics says of plans; experiments distort it."""

    seed: int
    options: PhysicsOptions = field(default_factory=PhysicsOptions)
    rows_of: RowsOf = rows_of
    _known: _Known = field(default_factory=_Known, compare=False)

    def ask(self, task: Task, seen: Sequence[Seen], n: int) -> Proposal:
        if n <= 0 or not len(task.space):
            return Proposal(())
        rows = self._rows(task)
        trials = read_trials(task, seen, self._unseen(task, seen), self.rows_of)
        hopeful = trials.unseen
        if self.options.fits:
            hopeful = hopeful[~surely_out_of_memory(task.space.columns, trials.ran_out)[hopeful]]
        seed = derived_seed(self.seed, seen)
        weighed = self._screened(trials, rows, hopeful, task, seed)
        choices: list[Choice] = []
        chance: float | None = 0.0 if len(trials.best) else None
        if len(weighed):
            weighing = self._weighing(trials, self._sloped(task, rows, weighed), task, seed)
            chance = weighing.chance_left(task.tolerance)
            for row in range(len(trials.pending)):
                weighing = weighing.believing(trials.pending.take(np.array([row])))
            left = np.ones(len(weighed), dtype=np.bool_)
            while len(choices) < n and np.any(left):
                at = weighing.choose(left)
                left[at] = False
                choices.append(Choice(task.space[int(weighed[at])], weighing.expectation(at)))
                if len(choices) < n:
                    weighing = weighing.believing(weighing.rows.take(np.array([at])))
        # What surely runs out of memory, or was screened out, comes when nothing else is left.
        rest = np.setdiff1d(trials.unseen, weighed)[: n - len(choices)]
        choices += [Choice(task.space[int(index)]) for index in rest]
        return Proposal(tuple(choices), chance)

    def _screened(
        self, trials: Trials, rows: Rows, hopeful: npt.NDArray[np.int64], task: Task, seed: int
    ) -> npt.NDArray[np.int64]:
        observations = max(len(trials.measured), len(trials.tried.rows), SCREENED_BY)
        if len(rows) <= MOST_SLOPED and len(hopeful) * observations <= MOST_WEIGHED:
            return hopeful
        first_look = self._weighing(trials.first_look(SCREENED_BY), flat(rows.take(hopeful)), task, seed).worth()
        return np.sort(hopeful[np.argsort(-first_look, kind="stable")[:SCREENED]])

    def _weighing(self, trials: Trials, candidates: Rows, task: Task, seed: int) -> Weighing:
        belief = believe(trials, self.options)
        best = float(np.min(trials.own_times)) if self.options.residual and len(trials.own_times) else None
        return Weighing(
            trials=trials,
            rows=candidates,
            belief=belief,
            components=belief.speeds.at(candidates),
            runs=belief.runs(candidates),
            best=best,
            pareto=task.pareto,
            seed=seed,
        )

    def _rows(self, task: Task) -> Rows:
        if self._known.rows is None or self._known.task is not task:
            sloped = len(task.space) <= MOST_SLOPED
            self._known.rows = self.rows_of(task.training, task.space.columns, sloped=sloped)
            self._known.task, self._known.places = task, {}
        return self._known.rows

    def _sloped(self, task: Task, rows: Rows, index: npt.NDArray[np.int64]) -> Rows:
        """These rows of the space, with their slopes."""
        if len(rows) <= MOST_SLOPED:
            return rows.take(index)
        return self.rows_of(task.training, columns_at(task.space.columns, index))

    def _unseen(self, task: Task, seen: Sequence[Seen]) -> npt.NDArray[np.int64]:
        """Positions of the plans that were never chosen."""
        places = self._known.places
        for one in seen:
            if one.plan not in places:
                places[one.plan] = task.space.index_of(one.plan) if one.plan in task.space else None
        free = np.ones(len(task.space), dtype=np.bool_)
        free[[place for one in seen if (place := places[one.plan]) is not None]] = False
        return np.flatnonzero(free)


def create(seed: int, options: Mapping[str, Any]) -> Search:
    return PhysicsSearch(seed, parse_options("physics", PhysicsOptions, options))
