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
# Combinations of values that the physics works out one by one, as thousands of plans are listed at each ask.
MAX_CODES = 64


@dataclass(frozen=True, slots=True, eq=False)
class MemoryBelief:
    """What the trials of a campaign taught. scales: of the knobs' features, None where there are no knobs. seen: all
    its plans. listing: of the plans to choose from; None: all layouts, without knobs."""

    catalogue: Catalogue
    feasibility: Feasibility
    scales: Scales | None
    ran_out: Sequence[Plan]
    seen: Sequence[Plan]
    listing: Listing | None

    @property
    def runs(self) -> FloatColumn:
        """Of each plan to choose from, the probability that it fits and runs."""
        return self._runs(self.listing)

    @property
    def excess(self) -> Mapping[Plan, float]:
        """Of each plan seen, log2 of its believed peak over the usable memory."""
        rows = self._seen_so(self.catalogue.rows(self.seen))
        peaks, _ = moments(self.feasibility.peaks(rows))
        return dict(zip(self.seen, ((peaks - rows.log_capacity) / np.log(2.0)).tolist(), strict=True))

    def in_turn(self, unseen: IntArray, guard: float) -> list[IntArray]:
        """The positions `unseen` in the turns they are to be proposed in: plans that run with at least the probability
        `guard`, then the others, then the doomed. A guard of 0 holds nothing back."""
        if guard == 0.0:
            return [unseen]
        doomed, likely = self._doomed(self.listing)[unseen], self.runs[unseen] >= guard
        return [unseen[likely & ~doomed], unseen[~likely & ~doomed], unseen[doomed]]

    def is_likely(self, plan: Plan, guard: float) -> bool:
        """Whether a plan with knobs that was not to choose from belongs to the first turn."""
        space = self.catalogue.task.space
        alone = Listing(space, np.array([space.index_of(plan)]), space.knobs.codes_of([plan]))
        return bool(self._runs(alone)[0] >= guard and not self._doomed(alone)[0])

    def _runs(self, listing: Listing | None) -> FloatColumn:
        catalogue = self.catalogue
        rows = catalogue.legal if listing is None else catalogue.at(listing.layouts, listing.codes)
        rows = self._seen_so(rows)
        return self.feasibility.runs(rows, self.feasibility.peaks(rows))

    def _doomed(self, listing: Listing | None) -> BoolColumn:
        """Of each plan, whether it surely needs more than a plan that ran out."""
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
            catalogue = self._catalogue = Catalogue(task, rows_of, MAX_CODES)
        trials, scales = read_trials(task, seen, catalogue), None
        if catalogue.knobs is not None:
            trials, scales = fitted(trials, catalogue.knobs, Hypotheses())
        tried = (trials if catalogue.complete else trials.first_look(FEW)).tried
        plans = [one.plan for one in seen]
        return MemoryBelief(catalogue, learn_feasibility(tried), scales, trials.ran_out, plans, listing)
