"""The default search: the physics orders the plans, and what was measured corrects it, trial by trial.

Every legal plan is weighed: the expected improvement over the best measured speed, times the probability that the plan
runs, over what its trial costs. The speed is the physics' prediction with a residual that is learnt (`speed`), the
probability is the memory estimate's with a residual of its own (`feasibility`); both hold hypotheses that trust the
physics and some that do not, so that a wrong prior is found out.

Exact for all layouts as long as they times the observations are moderate (`MAX_WEIGHED`); beyond that they are first
ranked by the most telling observations alone, and the best `SCREENED` of them are weighed exactly. Of knobs, whose
combinations can be many, `knob_search` says which are weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ContextDecorator, ExitStack
from dataclasses import dataclass, field
from threading import Lock

import numpy as np  # its library must be loaded before it is looked for
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from meshtune.tuner.campaign.trial import Choice, Proposal
from meshtune.tuner.search.base import Observation, Task, derived_seed
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.feasibility import surely_out_of_memory
from meshtune.tuner.search.physics.history import Trials, flat, read_trials
from meshtune.tuner.search.physics.knob_search import KnobSearch, fitted
from meshtune.tuner.search.physics.prior import Rows, RowsOf, rows_of
from meshtune.tuner.search.physics.refit import refitted
from meshtune.tuner.search.physics.weighing import Batch, Hypotheses, PhysicsOptions, Weighing, believe, weigh

# Plans times observations that are weighed at once.
MAX_WEIGHED = 3_000_000
SCREENED = 4_000
SCREENED_BY = 24


class _OneThread(ContextDecorator):
    """Limits the linear algebra of the process to one thread while at least one ask is inside.

    On two processors that others use too, an ask with 300 observations took 5 to 13 times as long with two threads
    (benchmarks/log.md). Jobs would inherit an environment variable. Campaigns ask at once: the first sets it, the last
    lifts.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._limit = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                # Looked for each time: what another search imports meanwhile may bring a library of its own.
                self._limit.enter_context(ThreadpoolController().limit(limits=1, user_api="blas"))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.close()


one_thread = _OneThread()


@dataclass(slots=True)
class PhysicsSearch:
    """Expected improvement under a physical prior. rows_of: what the physics says of plans; experiments distort it.
    hypotheses: about the physics' error; experiments fit them."""

    seed: int
    options: PhysicsOptions = field(default_factory=PhysicsOptions)
    rows_of: RowsOf = rows_of
    hypotheses: Hypotheses = field(default_factory=Hypotheses)
    # Of the last ask's task, for the next ask.
    _catalogue: Catalogue | None = field(default=None, compare=False)

    @one_thread
    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        if n <= 0 or not len(task.space):
            return Proposal(())
        catalogue = self._catalogue
        if catalogue is None or catalogue.task is not task:
            catalogue = self._catalogue = Catalogue(task, self.rows_of)
        trials, seed = read_trials(task, seen, catalogue), derived_seed(self.seed, seen)
        if catalogue.knobs is not None:
            trials, scales = fitted(trials, catalogue.knobs, self.hypotheses)
            layouts = self._screened(trials, catalogue, np.arange(len(task.space)), seed)
            belief = believe(trials, self.options, self.hypotheses)
            return KnobSearch(task, catalogue, trials, belief, self.options, seed, scales).propose(layouts, seen, n)
        trials, catalogue = refitted(trials, catalogue, [one.plan for one in seen if one.verdict is None])
        hopeful = trials.unseen
        if self.options.fits:
            hopeful = hopeful[~surely_out_of_memory(task.space.columns, trials.ran_out)[hopeful]]
        weighed = self._screened(trials, catalogue, hopeful, seed)
        choices: list[Choice] = []
        chance: float | None = 0.0 if len(trials.best) else None
        if len(weighed):
            weighing = self._weighing(trials, catalogue.at(weighed), task, seed)
            chance = weighing.chance_left(task.tolerance)
            for at, chosen_by in Batch.of(weighing).choices(n):
                choices.append(Choice(task.space[int(weighed[at])], chosen_by.expectation(at)))
        # What surely runs out of memory, or was screened out, comes when nothing else is left.
        rest = np.setdiff1d(trials.unseen, weighed)[: n - len(choices)]
        choices += [Choice(task.space[int(index)]) for index in rest]
        return Proposal(tuple(choices), chance)

    def _screened(
        self, trials: Trials, catalogue: Catalogue, hopeful: npt.NDArray[np.int64], seed: int
    ) -> npt.NDArray[np.int64]:
        observations = max(len(trials.measured), len(trials.tried.rows), SCREENED_BY)
        if catalogue.complete and len(hopeful) * observations <= MAX_WEIGHED:
            return hopeful
        first, codes = trials.first_look(SCREENED_BY), catalogue.default_codes(hopeful)
        candidates = flat(catalogue.at(hopeful, codes, sloped=False))
        worth = self._weighing(first, candidates, catalogue.task, seed).worth()
        return np.sort(hopeful[np.argsort(-worth, kind="stable")[:SCREENED]])

    def _weighing(self, trials: Trials, candidates: Rows, task: Task, seed: int) -> Weighing:
        belief = believe(trials, self.options, self.hypotheses)
        return weigh(trials, candidates, belief, task, seed, residual=self.options.residual)
