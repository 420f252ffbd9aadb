"""How long searches may think: for so much of the time that jobs are looked at, orders obeyed and requests answered.

A purse of processor seconds: an ask takes from it what it took, and time refills it. An ask that begins is never
cut short, so the purse may be overdrawn; then nobody thinks until it is refilled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

# Asks begin for no longer than this between two looks at every campaign.
MOST_S = 0.5
# Of the time, on the whole. The rest is for all else: Python runs one thread at a time.
SHARE = 0.5


def always() -> bool:
    """For one campaign alone, which holds nobody up."""
    return True


class Thinking:
    """Of all campaigns that one thread drives. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_s = MOST_S
        self._filled_at = clock()
        self._first = ""
        self._refused: set[str] = set()

    def may(self, campaign_id: str) -> bool:
        """May a search think now? The first one in a round that may not is the first in the next round."""
        now = self._clock()
        self._left_s = min(MOST_S, self._left_s + SHARE * (now - self._filled_at))
        self._filled_at = now
        if self._left_s > 0:
            return True
        if not self._refused:
            self._first = campaign_id
        self._refused.add(campaign_id)
        return False

    def refused(self, campaign_id: str) -> bool:
        """Did it want to think in this round, and might not?"""
        return campaign_id in self._refused

    @property
    def refill_s(self) -> float:
        """Until somebody may think again, from the last time that somebody asked."""
        return max(0.0, -self._left_s / SHARE)

    def took(self, processor_s: float) -> None:
        """An ask took so much."""
        self._left_s -= processor_s

    def in_turn(self, campaign_ids: Sequence[str]) -> list[str]:
        """Begins a round: the campaigns in its order, so that each comes to think."""
        self._refused.clear()
        first = campaign_ids.index(self._first) if self._first in campaign_ids else 0
        return [*campaign_ids[first:], *campaign_ids[:first]]
