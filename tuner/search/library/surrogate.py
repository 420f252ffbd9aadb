"""The common part of the searches with a borrowed model: spread the first plans, then let the model choose the next.

Plans under way, those just chosen in the same ask included, are handed to the model, so that parallel workers get
different plans. Plans that are expected not to fit into memory come last (`memory_guard`), and those that failed teach
the model, also where none has run yet. Of earlier campaigns nothing but memory is learnt.

Where knobs make more plans than are listed, a model chooses among those around the best measured ones and random ones,
drawn anew at each ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from meshtune.search_spaces.listing import Listing
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.trial import Proposal, proposal_of
from meshtune.tuner.search.base import Observation, Task, derived_seed
from meshtune.tuner.search.library.encoding import Encoding, Features, FloatArray, History, IntArray, read_history
from meshtune.tuner.search.library.memory_guard import MemoryGuard

# Random plans of which the next first one is taken: best candidates (Mitchell 1991). Maximin over all plans takes the
# corners of the space and needs up to twice as many trials (benchmarks/log.md).
CANDIDATES = 10
# The default of `guard`.
GUARD = 0.2
# A space with knobs is listed whole up to so many plans, else so many of it, those around the best `AROUND` among them.
LISTED, AROUND = 10_000, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateOptions:
    """n_initial: plans spread over the space before the model chooses (None: see `first_plans`). guard: plans that run
    with a lower probability are proposed when nothing else is left. 0 holds none back, which costs more failed trials
    the fewer plans fit (docs/explanation/search.md)."""

    n_initial: Annotated[int, Field(ge=1)] | None = None
    guard: Annotated[float, Field(ge=0, lt=1)] = GUARD


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a model may choose. positions: of plans of the history's list, shuffled. accepts: which other plans of the
    space it may name; None where all are listed."""

    positions: IntArray
    accepts: Callable[[Plan], bool] | None


class Model(Protocol):
    def __call__(
        self, history: History, under_way: Sequence[Features], offer: Offer, n: int, seed: int
    ) -> Sequence[Plan]:
        """Up to `n` distinct ones of the plans offered, best first."""


def propose(
    task: Task,
    seen: Sequence[Observation],
    n: int,
    seed: int,
    options: SurrogateOptions,
    guard: MemoryGuard,
    model: Model,
) -> Proposal:
    ask_seed = derived_seed(seed, seen)
    rng = np.random.default_rng(ask_seed)
    listing = _listing(task.space, seen, ask_seed)
    memory = guard.believe(task, seen, listing)
    history = read_history(task, seen, memory.excess, listing)
    plans, encoding, points = history.plans, history.encoding, history.encoding.points()
    n = max(0, min(n, len(history.unseen)))
    started = len(history.samples) + len(history.pending)
    first = first_plans(options.n_initial, encoding) - started if history.samples else n
    chosen: list[Plan] = []

    def gone() -> IntArray:
        return np.array([at for plan in chosen if (at := plans.find(plan)) is not None], dtype=np.int64)

    def spread_apart(offered: IntArray, count: int) -> list[Plan]:
        others = np.array([encoding.point(features) for features in _features_of(encoding, chosen)])
        near = np.concatenate([points[history.taken], others.reshape(len(others), points.shape[1])])
        return [plans[index] for index in spread(points, near, np.setdiff1d(offered, gone()), count, rng)]

    for turn, offered in enumerate(memory.in_turn(history.unseen, options.guard)):
        end = min(n, len(chosen) + len(offered))
        chosen += spread_apart(offered, min(end, first) - len(chosen))
        if len(chosen) < end:
            under_way = [*history.pending, *_features_of(encoding, chosen)]
            known = {*(one.plan for one in seen), *chosen}

            def accepts(plan: Plan, known: set[Plan] = known, held: bool = turn == 0 and options.guard > 0.0) -> bool:
                return plan not in known and (not held or memory.is_likely(plan, options.guard))

            positions = rng.permutation(np.setdiff1d(offered, gone()))
            offer = Offer(positions, None if listing is None or listing.complete else accepts)
            chosen += model(history, under_way, offer, end - len(chosen), ask_seed)
            # A model may name a plan twice within a batch; fewer plans than asked for would mean an exhausted space.
            chosen += spread_apart(offered, end - len(chosen))
    return proposal_of(chosen)


def _listing(space: Space, seen: Sequence[Observation], seed: int) -> Listing | None:
    """What a model chooses from in a space with knobs: the plans seen, what is around the best of them, and others."""
    if not space.knobs:
        return None
    measured = [one for one in seen if one.score is not None]
    best = [one.plan for one in sorted(measured, key=lambda one: -(one.score or 0.0))[:AROUND]]
    return Listing.of(space, LISTED, np.random.default_rng((seed, 1)), best, [one.plan for one in seen])


def _features_of(encoding: Encoding, plans: Sequence[Plan]) -> list[Features]:
    return [features for plan in plans if (features := encoding.encode(plan)) is not None]


def first_plans(asked: int | None, encoding: Encoding) -> int:
    """The number of plans spread over the space before a model chooses: `asked`, else 2 d + 1 for d dimensions
    (DeepHyper's default) and at least 4; never more than a third of the space."""
    wanted = max(4, 2 * len(encoding.choices) + 1) if asked is None else asked
    return max(1, min(wanted, len(encoding.ranks) // 3))


def spread(points: FloatArray, others: FloatArray, free: IntArray, n: int, rng: np.random.Generator) -> list[int]:
    """Up to `n` rows of `points` out of `free`, kept apart from `others` and from each other: of `CANDIDATES` random
    ones, the one furthest from all chosen so far. Needs no model and no success."""
    chosen: list[int] = []
    left = free
    for _ in range(min(n, len(free))):
        drawn = rng.choice(left, size=min(CANDIDATES, len(left)), replace=False)
        # The squared distance to the nearest other; the same for all where there is none.
        apart = np.sum((points[drawn][:, None, :] - others[None, :, :]) ** 2, axis=2)
        best = int(drawn[np.argmax(apart.min(axis=1, initial=np.inf))])
        chosen.append(best)
        others, left = np.vstack([others, points[best]]), left[left != best]
    return chosen
