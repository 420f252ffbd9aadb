"""The default search: the physics orders the plans, and what was measured corrects it, trial by trial.

Every legal plan is weighed: the expected improvement over the best measured speed, times the probability that the plan
runs, over what its trial costs. The speed is the physics' prediction with a residual that is learnt (`speed`), the
probability is the memory estimate's with a residual of its own (`feasibility`); both hold hypotheses that trust the
physics and some that do not, so that a wrong prior is found out.

Exact for all plans as long as plans times observations is moderate (`MAX_WEIGHED`); beyond that the plans are first
ranked by the most telling observations alone, and the best `SCREENED` of them are weighed exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ContextDecorator, ExitStack
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np  # its library must be loaded before it is looked for
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from meshtune.tuner.campaign.trial import Choice, Proposal
from meshtune.tuner.search.base import Observation, Search, Task
from meshtune.tuner.search.library.surrogate import derived_seed
from meshtune.tuner.search.physics.feasibility import surely_out_of_memory
from meshtune.tuner.search.physics.history import Trials, flat, read_trials
from meshtune.tuner.search.physics.prior import Catalogue, Rows, RowsOf, rows_of, stack
from meshtune.tuner.search.physics.speed import Component
from meshtune.tuner.search.physics.weighing import Batch, Belief, Hypotheses, PhysicsOptions, Weighing, believe
from meshtune.tuner.search.registry import parse_options

# Plans times observations that are weighed at once.
MAX_WEIGHED = 3_000_000
SCREENED = 4_000
SCREENED_BY = 24


class _OneThread(ContextDecorator):
    """Limits the linear algebra of the process to one thread while at least one ask is inside.

    On two processors that others use too, an ask with 300 observations took 5 to 13 times as long with two threads
    (docs/log.md). Jobs would inherit an environment variable. Campaigns ask at once: the first sets it, the last lifts.
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
        trials = read_trials(task, seen, catalogue)
        hopeful = trials.unseen
        if self.options.fits:
            hopeful = hopeful[~surely_out_of_memory(task.space.columns, trials.ran_out)[hopeful]]
        seed = derived_seed(self.seed, seen)
        weighed = self._screened(trials, catalogue, hopeful, seed)
        choices: list[Choice] = []
        chance: float | None = 0.0 if len(trials.best) else None
        if len(weighed):
            candidates, belief = catalogue.sloped(weighed), believe(trials, self.options, self.hypotheses)
            views = belief.speeds.views(stack([candidates, trials.pending]))
            components = views.components(len(candidates))
            weighing = self._weighing(trials, candidates, belief, components, task, seed)
            batch = Batch(weighing, views, belief.memory(trials.pending).peak)
            chance = weighing.chance_left(task.tolerance)
            for at, chosen_by in batch.choices(n):
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
        first, candidates = trials.first_look(SCREENED_BY), flat(catalogue.legal.take(hopeful))
        belief = believe(first, self.options, self.hypotheses)
        components = belief.speeds.at(candidates)
        first_look = self._weighing(first, candidates, belief, components, catalogue.task, seed).worth()
        return np.sort(hopeful[np.argsort(-first_look, kind="stable")[:SCREENED]])

    def _weighing(
        self, trials: Trials, candidates: Rows, belief: Belief, components: Sequence[Component], task: Task, seed: int
    ) -> Weighing:
        best = float(np.min(trials.own_times)) if self.options.residual and len(trials.own_times) else None
        memory = belief.memory(candidates)
        return Weighing(trials, candidates, belief.speeds, components, memory, best, task.pareto, seed)


def create(seed: int, options: Mapping[str, Any]) -> Search:
    return PhysicsSearch(seed, parse_options("physics", PhysicsOptions, options))
