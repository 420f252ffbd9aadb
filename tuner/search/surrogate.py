"""What the searches with a borrowed model share: spread the first plans, then let the model choose among the unseen.

The model is asked only when there is a success to learn from. Plans under way, those just chosen in the same ask
included, are handed to it, so that parallel workers get different plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tuner.search.base import Proposal, Seen, Task, proposal_of
from tuner.search.design import spread
from tuner.search.encoding import Encoding, Features, IntArray
from tuner.search.history import History, read_history


class Model(Protocol):
    def __call__(
        self, history: History, under_way: Sequence[Features], candidates: IntArray, n: int, seed: int
    ) -> list[int]:
        """Up to `n` distinct ones of `candidates` (positions in the space, shuffled), best first."""


def propose(task: Task, seen: Sequence[Seen], n: int, seed: int, n_initial: int | None, model: Model) -> Proposal:
    """The plans of one ask, see `Search.ask`."""
    history = read_history(task.space, seen)
    encoding = history.encoding
    ask_seed = derived_seed(seed, seen)
    rng = np.random.default_rng(ask_seed)
    n = max(0, min(n, len(history.unseen)))
    still_spread = first_plans(n_initial, encoding) - history.observed if history.scores else n
    points = encoding.points()
    chosen = spread(points, history.taken, history.unseen, min(n, still_spread), rng)
    if len(chosen) < n:
        under_way = [*history.pending, *(encoding.features(index) for index in chosen)]
        candidates = rng.permutation(np.setdiff1d(history.unseen, chosen))
        chosen += model(history, under_way, candidates, n - len(chosen), ask_seed)
    if len(chosen) < n:
        # A model may name a plan twice within a batch; fewer plans than asked for would mean an exhausted space.
        taken = np.concatenate([history.taken, np.array(chosen, dtype=np.int64)])
        chosen += spread(points, taken, np.setdiff1d(history.unseen, chosen), n - len(chosen), rng)
    return proposal_of([task.space[index] for index in chosen])


def first_plans(asked: int | None, encoding: Encoding) -> int:
    """How many plans are spread over the space before a model chooses: `asked`, else 2 d + 1 for d dimensions
    (DeepHyper's default) and at least 4; never more than a third of the space."""
    wanted = max(4, 2 * len(encoding.choices) + 1) if asked is None else asked
    return max(1, min(wanted, len(encoding.ranks) // 3))


def derived_seed(seed: int, seen: Sequence[Seen]) -> int:
    """A seed for this ask: fixed by the campaign's seed and by how far it is, so that an ask may be repeated."""
    return int(np.random.SeedSequence((seed, len(seen))).generate_state(1)[0])
