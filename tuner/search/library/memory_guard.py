"""Memory, for the searches with a borrowed model: which plans likely fit, and how much the others lack.

The belief is that of the search `physics` (`physics.feasibility`): the memory formulas, corrected by measured peaks and
out-of-memory verdicts of this campaign and, by their weights, of earlier ones; and by what each knob was seen to do to
it. That is all that DeepHyper and Optuna learn from earlier campaigns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshtune.search_spaces.columns import BoolColumn, FloatColumn
from meshtune.search_spaces.listing import Listing
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.encoding import IntArray
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.feasibility import (
    Feasibility,
    learn_feasibility,
    surely_out_of_memory,
    surely_out_with_knobs,
)
from meshtune.tuner.search.physics.history import flat, read_trials
from meshtune.tuner.search.physics.knob_effects import Scales
from meshtune.tuner.search.physics.knob_search import fitted
from meshtune.tuner.search.physics.prior import Rows, rows_of
from meshtune.tuner.search.physics.weighing import Hypotheses, moments

# Observations of memory that the belief holds to where the space is too large for more, as in `physics.search`.
FEW = 24


@dataclass(frozen=True, slots=True, eq=False)
class MemoryBelief:
    """runs: of each plan to choose from, the probability that it fits and runs. doomed: of each, whether it surely
    needs more than a plan that ran out. excess: of each plan seen, log2 of its believed peak over the usable memory."""

    runs: FloatColumn
    doomed: BoolColumn
    excess: Mapping[Plan, float]
    _belief: _Belief

    def in_turn(self, unseen: IntArray, guard: float) -> list[IntArray]:
        """The positions `unseen` in the turns they are to be proposed in: plans that run with at least the probability
        `guard`, then the others, then the doomed. A guard of 0 holds nothing back."""
        if guard == 0.0:
            return [unseen]
        doomed, likely = self.doomed[unseen], self.runs[unseen] >= guard
        return [unseen[likely & ~doomed], unseen[~likely & ~doomed], unseen[doomed]]

    def is_likely(self, plan: Plan, guard: float) -> bool:
        """Whether a plan with knobs that was not to choose from belongs to the first turn."""
        space = self._belief.catalogue.task.space
        alone = Listing(space, np.array([space.index_of(plan)]), space.knobs.codes_of([plan]))
        return bool(self._belief.runs(alone)[0] >= guard and not self._belief.doomed(alone)[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Belief:
    """What the trials of a campaign taught. scales: of the knobs' features, None where there are no knobs."""

    catalogue: Catalogue
    feasibility: Feasibility
    scales: Scales | None
    ran_out: Sequence[Plan]

    @classmethod
    def of(cls, task: Task, seen: Sequence[Observation], catalogue: Catalogue) -> _Belief:
        trials, scales = read_trials(task, seen, catalogue), None
        if catalogue.knobs is not None:
            trials, scales = fitted(trials, catalogue.knobs, Hypotheses())
        tried = (trials if catalogue.complete else trials.first_look(FEW)).tried
        return cls(catalogue, learn_feasibility(tried), scales, trials.ran_out)

    def runs(self, listing: Listing | None) -> FloatColumn:
        """Of a listing's plans, or of all layouts."""
        catalogue = self.catalogue
        rows = catalogue.legal if listing is None else catalogue.at(listing.layouts, listing.codes)
        rows = self._seen_so(rows)
        return self.feasibility.runs(rows, self.feasibility.peaks(rows))

    def excess(self, plans: Sequence[Plan]) -> FloatColumn:
        rows = self._seen_so(self.catalogue.rows(plans))
        peaks, _ = moments(self.feasibility.peaks(rows))
        excess: FloatColumn = (peaks - rows.log_capacity) / np.log(2.0)
        return excess

    def doomed(self, listing: Listing | None) -> BoolColumn:
        space = self.catalogue.task.space
        if listing is None:
            return surely_out_of_memory(space.columns, self.ran_out)
        ran_out = list(zip(self.ran_out, space.knobs.known_codes(self.ran_out), strict=True))
        return surely_out_with_knobs(space.columns, listing.layouts, listing.codes, ran_out)

    def _seen_so(self, rows: Rows) -> Rows:
        """As the belief's own rows are: without slopes where there are too many, with the knobs' features scaled."""
        kept = rows if self.catalogue.complete else flat(rows)
        return kept if self.scales is None else self.scales.of(kept)


@dataclass(slots=True)
class MemoryGuard:
    """Keeps the physics' rows of the last task, which it alone determines, for the next ask."""

    _catalogue: Catalogue | None = None

    def believe(self, task: Task, seen: Sequence[Observation], listing: Listing | None = None) -> MemoryBelief:
        """listing: of the plans to choose from; None: all of a space without knobs."""
        catalogue = self._catalogue
        if catalogue is None or catalogue.task is not task:
            catalogue = self._catalogue = Catalogue(task, rows_of)
        belief, plans = _Belief.of(task, seen, catalogue), [one.plan for one in seen]
        excess = dict(zip(plans, belief.excess(plans).tolist(), strict=True))
        return MemoryBelief(belief.runs(listing), belief.doomed(listing), excess, belief)
