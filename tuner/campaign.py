"""A Campaign: one spec being worked on, how far it is, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.spec import CampaignSpec


class CampaignState(StrEnum):
    """CANCELLING waits for running jobs to end. The last three are for ever."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (CampaignState.COMPLETED, CampaignState.CANCELLED, CampaignState.FAILED)

    @property
    def active(self) -> bool:
        """True while a service has work to do for it (a paused one may still have jobs to collect)."""
        return self in (CampaignState.RUNNING, CampaignState.PAUSED, CampaignState.CANCELLING)

    @property
    def resting(self) -> bool:
        """True while no new trials are started although the campaign is not over."""
        return self is CampaignState.PAUSED

    def may_become(self, other: CampaignState) -> bool:
        """The legal moves; a final state has none."""
        return other in {
            CampaignState.RUNNING: {
                CampaignState.PAUSED,
                CampaignState.CANCELLING,
                CampaignState.COMPLETED,
                CampaignState.FAILED,
            },
            CampaignState.PAUSED: {CampaignState.RUNNING, CampaignState.CANCELLING},
            CampaignState.CANCELLING: {CampaignState.CANCELLED},
        }.get(self, set())


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One row of truth. combinations and legal: the size of its space. elapsed_s: the time it was worked on, which a
    wall-time budget counts. reason: why the state is what it is, fit for a user. Times are epoch seconds."""

    id: str
    spec: CampaignSpec
    state: CampaignState
    created_at: float
    updated_at: float
    combinations: int
    legal: int
    elapsed_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a campaign. id grows over all campaigns, in the order of commits. kind: dotted, such
    as "campaign.created" or "trial.done"; data: plain JSON values."""

    id: int
    campaign_id: str
    at: float
    kind: str
    data: dict[str, object]
