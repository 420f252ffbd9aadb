"""The common part of the searches with a borrowed model: spread the first plans, then let the model choose the next.

The model is asked only when there is a success to learn from. Plans under way, those just chosen in the same ask
included, are handed to it, so that parallel workers get different plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from meshtune.tuner.campaign.trial import Proposal, proposal_of
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.encoding import Encoding, Features, FloatArray, IntArray
from meshtune.tuner.search.library.history import History, read_history
from meshtune.tuner.search.library.memory_guard import in_turn

# Random plans of which the next first one is taken. Best candidates (Mitchell 1991) reached 5 % of the best of three
# analytic landscapes after 13, 17 and 34.5 trials, maximin over all plans, which takes the corners of the space, after
# 21.5, 29 and 75.5, and plain random plans after 21.5, 33.5 and 38.5 (DeepHyper; medians of 16 seeds).
CANDIDATES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateOptions:
    """n_initial: plans spread over the space before the model chooses (None: see `first_plans`). guard: plans that fit
    into memory with a lower probability are proposed when nothing else is left (see `guard`); 0 holds none back."""

    n_initial: Annotated[int, Field(ge=1)] | None = None
    guard: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Model(Protocol):
    def __call__(
        self, history: History, under_way: Sequence[Features], candidates: IntArray, n: int, seed: int
    ) -> list[int]:
        """Up to `n` distinct ones of `candidates` (positions in the space, shuffled), best first."""


def propose(
    task: Task, seen: Sequence[Observation], n: int, seed: int, options: SurrogateOptions, model: Model
) -> Proposal:
    """The plans of one ask, see `Search.ask`."""
    history = read_history(task, seen)
    ask_seed = derived_seed(seed, seen)
    rng = np.random.default_rng(ask_seed)
    n = max(0, min(n, len(history.unseen)))
    first = first_plans(options.n_initial, history.encoding) - history.observed if history.scores else n
    chosen: list[int] = []
    for offered in in_turn(task, seen, history.unseen, options.guard):
        wanted = min(n - len(chosen), len(offered))
        if wanted:
            chosen += _choose(history, chosen, offered, wanted, first - len(chosen), model, rng, ask_seed)
    return proposal_of([task.space[index] for index in chosen])


def _choose(
    history: History,
    before: Sequence[int],
    offered: IntArray,
    n: int,
    first: int,
    model: Model,
    rng: np.random.Generator,
    seed: int,
) -> list[int]:
    """`n` of the positions `offered`: the `first` of them spread, then the model's. before: chosen in this ask."""
    encoding = history.encoding
    points = encoding.points()

    def spread_apart(chosen: Sequence[int], count: int) -> list[int]:
        taken = np.concatenate([history.taken, np.array([*before, *chosen], dtype=np.int64)])
        return spread(points, taken, np.setdiff1d(offered, chosen), count, rng)

    chosen = spread_apart([], max(0, min(n, first)))
    if len(chosen) < n:
        under_way = [*history.pending, *(encoding.features(index) for index in (*before, *chosen))]
        candidates = rng.permutation(np.setdiff1d(offered, chosen))
        chosen += model(history, under_way, candidates, n - len(chosen), seed)
    # A model may name a plan twice within a batch; fewer plans than asked for would mean an exhausted space.
    return chosen + spread_apart(chosen, n - len(chosen))


def first_plans(asked: int | None, encoding: Encoding) -> int:
    """The number of plans spread over the space before a model chooses: `asked`, else 2 d + 1 for d dimensions
    (DeepHyper's default) and at least 4; never more than a third of the space."""
    wanted = max(4, 2 * len(encoding.choices) + 1) if asked is None else asked
    return max(1, min(wanted, len(encoding.ranks) // 3))


def derived_seed(seed: int, seen: Sequence[Observation]) -> int:
    """A seed for this ask: fixed by the campaign's seed and by how far it is, so that an ask may be repeated."""
    return int(np.random.SeedSequence((seed, len(seen))).generate_state(1)[0])


def spread(points: FloatArray, taken: IntArray, free: IntArray, n: int, rng: np.random.Generator) -> list[int]:
    """Up to `n` rows of `points` out of `free`, kept apart from those in `taken` and from each other: of `CANDIDATES`
    random ones, the one furthest from all chosen so far. Needs no model and no success."""
    chosen: list[int] = []
    others, left = points[taken], free
    for _ in range(min(n, len(free))):
        drawn = rng.choice(left, size=min(CANDIDATES, len(left)), replace=False)
        best = int(drawn[np.argmax(_nearest(points[drawn], others))])
        chosen.append(best)
        others, left = np.vstack([others, points[best]]), left[left != best]
    return chosen


def _nearest(candidates: FloatArray, others: FloatArray) -> FloatArray:
    """Each candidate's squared distance to the nearest other; the same for all where there is none."""
    if not len(others):
        return np.zeros(len(candidates))
    squares: FloatArray = np.sum((candidates[:, None, :] - others[None, :, :]) ** 2, axis=2)
    nearest: FloatArray = squares.min(axis=1)
    return nearest
