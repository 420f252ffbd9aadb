"""The seam to a search: which plans to try next, as a function of what has been tried.

SearchError              root; the search cannot go on; the same history gives the same error
+-- UnknownSearch        no search of that name
+-- SearchMisconfigured  the search is there and refuses its options, or a library it needs is missing
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runners.outcome import Verdict
from search_spaces.plan import Plan
from search_spaces.space import Space


class SearchError(Exception):
    """The search cannot propose; the same history gives the same error."""


class UnknownSearch(SearchError):
    """No search of that name is registered."""


class SearchMisconfigured(SearchError):
    """An option of the search is wrong, or its library is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One plan that the campaign has chosen, in the order of choosing.

    verdict None: still pending. score: what to maximise, exactly when the verdict is OK; no failed, pruned or
    pending plan ever has one.
    """

    plan: Plan
    verdict: Verdict | None = None
    score: float | None = None

    def __post_init__(self) -> None:
        if (self.score is not None) != (self.verdict is Verdict.OK):
            raise ValueError(f"{self.plan.key}: a score ({self.score}) goes with verdict ok only, not {self.verdict}")


class Search(Protocol):
    """A search keeps nothing between calls: the campaign's history is its only memory."""

    def ask(self, space: Space, seen: Sequence[Seen], n: int) -> list[Plan]:
        """Up to `n` distinct plans of `space`, none of them in `seen`, best first.

        Fewer than n, or none: the space holds no more unseen plans. The same arguments give the same plans, so a
        call may be repeated after a crash. Raises SearchError.
        """
