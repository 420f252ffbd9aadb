"""A runner that refuses the jobs of a campaign, as the cluster is now, is asked again with growing pauses."""

from __future__ import annotations

from dataclasses import dataclass

# Between two tries, twice as long each time.
LEAST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The runner takes no job of the campaign just now. again_at: when to ask again, by the session's timer."""

    why: str
    pause_s: float
    again_at: float

    def __str__(self) -> str:
        return f"the runner refuses jobs: {self.why}; tried again"


def refused(why: str, before: Refusal | None, now: float) -> Refusal:
    """before: the refusal that this one follows, with no job taken in between."""
    pause_s = LEAST_PAUSE_S if before is None else min(MAX_PAUSE_S, 2 * before.pause_s)
    return Refusal(why, pause_s, now + pause_s)
