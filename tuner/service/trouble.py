"""What keeps a campaign from getting on. A runner that refuses its jobs is asked again with growing pauses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Between two tries, twice as long each time.
LEAST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0


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
    """The runner takes no job of the campaign just now. again_at: when to ask again, by the session's timer."""

    why: str
    pause_s: float
    again_at: float

    @property
    def trouble(self) -> Trouble:
        return Trouble(f"the runner refuses jobs: {self.why}; tried again", TroubleKind.REFUSED)


def refused(why: str, before: Refusal | None, now: float) -> Refusal:
    """before: the refusal that this one follows, with no job taken in between."""
    pause_s = LEAST_PAUSE_S if before is None else min(MAX_PAUSE_S, 2 * before.pause_s)
    return Refusal(why, pause_s, now + pause_s)
