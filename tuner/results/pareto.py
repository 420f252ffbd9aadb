"""The Pareto front of speed and memory left over: the measured plans of which none is both slower and fuller.

Speeds and peaks stand as they were measured: of two plans within each other's noise one may push the other off the
front. Plans whose peak is unknown cannot be on it, nor those that are never recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from meshtune.tuner.results.ranking import Ranked

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Alternative:
    """A setting of the front beside the recommended one. slower: the share of the speed that it gives up;
    more_headroom_bytes: what it gains."""

    entry: Ranked
    slower: float
    more_headroom_bytes: float

    def __str__(self) -> str:
        more = f"{self.more_headroom_bytes / GIB:.3g} GiB more headroom"
        return f"{self.entry.trial.plan.key}: {100 * self.slower:.1f} % slower, {more}"


def front_of(ranking: Sequence[Ranked]) -> list[Ranked]:
    """The front, the fastest first; of plans that are equal in both the one that ranks first."""
    known = [(entry.headroom_bytes, entry) for entry in ranking if entry.headroom_bytes is not None and entry.usable]
    # Tokens per second order plans as every objective does.
    known.sort(key=lambda pair: (-pair[1].tokens_per_s.value, -pair[0], pair[1].rank))
    front, most = [], -inf
    for headroom_bytes, entry in known:
        if headroom_bytes > most:
            front.append(entry)
            most = headroom_bytes
    return front


def alternatives(front: Sequence[Ranked], choice: Ranked) -> list[Alternative]:
    """What the front's slower plans with more headroom than the choice give up and gain, the fastest first."""
    if choice.headroom_bytes is None:
        return []
    return [
        Alternative(
            entry,
            1 - entry.tokens_per_s.value / choice.tokens_per_s.value,
            entry.headroom_bytes - choice.headroom_bytes,
        )
        for entry in front
        if entry.headroom_bytes is not None
        and entry.headroom_bytes > choice.headroom_bytes
        and entry.rank > choice.rank
    ]
