"""The searches that learn nothing: random, which any other must beat, and grid, which leaves nothing out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.trial import Proposal, proposal_of
from meshtune.tuner.search.base import Observation, Search, Task
from meshtune.tuner.search.registry import parse_options


@dataclass(frozen=True, slots=True)
class NoOptions:
    """These searches have none."""


@dataclass(frozen=True, slots=True)
class RandomSearch:
    """The space in one random order, fixed by the seed: exact sampling without replacement."""

    seed: int

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        order = np.random.default_rng(self.seed).permutation(len(task.space))
        return _unseen((task.space[int(index)] for index in order), seen, n)


@dataclass(frozen=True, slots=True)
class GridSearch:
    """The space in its own order: dimension by dimension, the last one fastest."""

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        return _unseen(task.space, seen, n)


def _unseen(plans: Iterable[Plan], seen: Sequence[Observation], n: int) -> Proposal:
    taken = {one.plan for one in seen}
    return proposal_of(list(islice((plan for plan in plans if plan not in taken), max(0, n))))


def create_random(seed: int, options: Mapping[str, Any]) -> Search:
    parse_options("random", NoOptions, options)
    return RandomSearch(seed)


def create_grid(seed: int, options: Mapping[str, Any]) -> Search:
    """The seed is accepted like every search's, and changes nothing."""
    parse_options("grid", NoOptions, options)
    return GridSearch()
