"""Memory, for the searches with a borrowed model: which plans likely fit, and how much the others lack.

The belief is that of the search `physics` (`physics.feasibility`): the memory formulas, corrected by measured peaks and
out-of-memory verdicts of this campaign and, by their weights, of earlier ones. That is all that DeepHyper and Optuna
learn from earlier campaigns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshtune.search_spaces.columns import BoolColumn, FloatColumn
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.encoding import IntArray
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.feasibility import learn_feasibility, surely_out_of_memory
from meshtune.tuner.search.physics.history import flat, read_trials
from meshtune.tuner.search.physics.prior import rows_of
from meshtune.tuner.search.physics.weighing import moments

# Observations of memory that the belief holds to where the space is too large for more, as in `physics.search`.
FEW = 24


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """runs: of each legal plan, the probability that it fits and runs. doomed: of each, whether it surely needs more
    than a plan that ran out. excess: of each plan seen, log2 of its believed peak over the usable memory."""

    runs: FloatColumn
    doomed: BoolColumn
    excess: Mapping[Plan, float]

    def in_turn(self, unseen: IntArray, guard: float) -> list[IntArray]:
        """The positions `unseen` in the turns they are to be proposed in: plans that run with at least the probability
        `guard`, then the others, then the doomed. A guard of 0 holds nothing back."""
        if guard == 0.0:
            return [unseen]
        doomed, likely = self.doomed[unseen], self.runs[unseen] >= guard
        return [unseen[likely & ~doomed], unseen[~likely & ~doomed], unseen[doomed]]


@dataclass(slots=True)
class MemoryGuard:
    """Keeps the physics' rows of the last task, which it alone determines, for the next ask."""

    _catalogue: Catalogue | None = None

    def believe(self, task: Task, seen: Sequence[Observation]) -> Memory:
        catalogue = self._catalogue
        if catalogue is None or catalogue.task is not task:
            catalogue = self._catalogue = Catalogue(task, rows_of)
        trials = read_trials(task, seen, catalogue)
        feasibility = learn_feasibility((trials if catalogue.complete else trials.first_look(FEW)).tried)
        runs = feasibility.runs(catalogue.legal, feasibility.peaks(catalogue.legal))
        plans = [one.plan for one in seen]
        rows = catalogue.rows(plans)
        peaks, _ = moments(feasibility.peaks(rows if catalogue.complete else flat(rows)))
        excess = (peaks - rows.log_capacity) / np.log(2.0)
        doomed = surely_out_of_memory(task.space.columns, trials.ran_out)
        return Memory(runs, doomed, dict(zip(plans, excess.tolist(), strict=True)))
