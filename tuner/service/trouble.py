"""What keeps a campaign from getting on. A runner that refuses its jobs is asked again with growing pauses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Between two tries, twice as long each time.
LEAST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
# So many refusals, some 15 s, of a campaign none of whose jobs was ever taken are the spec's fault.
MOST_TRIES = 5


class TroubleKind(StrEnum):
    """RUNNER: its scheduler is silent or in error. REFUSED: the runner takes no such jobs just now. ELSEWHERE: another
    process drives the campaign. OTHER: a quota, the database, a defect."""

    RUNNER = "runner"
    REFUSED = "refused"
    ELSEWHERE = "elsewhere"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Trouble:
    """words: for people, without what the kind says."""

    words: str
    kind: TroubleKind = TroubleKind.OTHER

    def __str__(self) -> str:
        return f"the runner: {self.words}" if self.kind is TroubleKind.RUNNER else self.words


@dataclass(frozen=True, slots=True)
class Refusal:
    """The runner takes no job of the campaign just now. since, again_at: of the first of so many tries, and when to ask
    again, by the session's timer."""

    why: str
    tries: int
    since: float
    again_at: float

    @property
    def trouble(self) -> Trouble:
        return Trouble(f"the runner refuses jobs: {self.why}; tried again", TroubleKind.REFUSED)


def refused(why: str, before: Refusal | None, now: float) -> Refusal:
    """before: the refusal that this one follows, with no job taken in between."""
    tries, since = (1, now) if before is None else (before.tries + 1, before.since)
    return Refusal(why, tries, since, now + min(MAX_PAUSE_S, LEAST_PAUSE_S * 2 ** min(tries - 1, 10)))
