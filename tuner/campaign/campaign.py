"""A Campaign (one spec, its progress, and why it ended) and Home, the folder with the files of all campaigns."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from meshtune.runners.registry import SIMULATED
from meshtune.tuner.campaign.spec import CampaignSpec


class CampaignState(StrEnum):
    """CANCELLING waits for running jobs to end. The last three are ends; a COMPLETED campaign goes on where somebody
    extends it (`tuner.campaign.changes`), the others never do."""

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

    def may_become(self, other: CampaignState) -> bool:
        """The legal moves; a final state has none."""
        return other in _MOVES.get(self, ())


# The file of the default database in a home.
DATABASE = "meshtune.db"
_MOVES: Mapping[CampaignState, tuple[str, ...]] = {
    CampaignState.RUNNING: ("paused", "cancelling", "completed", "failed"),
    CampaignState.PAUSED: ("running", "cancelling"),
    CampaignState.CANCELLING: ("cancelled",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """An earlier campaign from which a campaign's search learns: from its trials, or from its calibration alone."""

    campaign_id: str
    # How many of its trials.
    trials: int
    # How much each of them counts, 1 for as much as one of the campaign's own (see `tuner.search.warm_start`).
    # Of a calibration: the share of it that holds for the campaign's release.
    weight: float
    calibration: bool = False

    def __str__(self) -> str:
        trials = "1 trial" if self.trials == 1 else f"{self.trials} trials"
        kind = "calibration, " if self.calibration else ""
        return f"{self.campaign_id} ({kind}{trials}, weight {self.weight:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One row of truth. Times are epoch seconds."""

    id: str
    spec: CampaignSpec
    state: CampaignState
    created_at: float
    updated_at: float
    # The size of its space: all settings within the bounds, and the legal ones of them.
    combinations: int
    legal: int
    # When it was created or last resumed.
    running_since: float = 0.0
    # The time that it was worked on, which a wall-time budget counts.
    elapsed_s: float = 0.0
    # Of the state, fit for a user.
    reason: str = ""
    # Why no more plans are chosen; empty while the search goes on, and where something else ended the campaign before.
    search_ended: str = ""
    # The last one that the search gave, see `Proposal`; None where it never gave one.
    chance_left: float | None = None
    lessons: tuple[Lesson, ...] = ()
    # The name of the token that created it, empty for the command line. Who reads it: `tuner.access.tokens.Rights`.
    owner: str = ""

    @property
    def simulated(self) -> bool:
        """True where no device runs its trials: what they measure are made-up numbers."""
        return self.spec.runner.kind == SIMULATED

    @property
    def label(self) -> str:
        """Its id, and that it is simulated where it is."""
        return f"{self.id} (simulated)" if self.simulated else self.id

    def job_labels(self, trial: int) -> dict[str, str]:
        """What a job of that trial tells its scheduler (`JobSpec.labels`)."""
        owner = {"owner": self.owner} if self.owner else {}
        return {**owner, "campaign": self.id, "trial": str(trial)}


# What happens to a campaign: every `kind` of an event.
EVENT_KINDS = (
    *(f"campaign.{word}" for word in ("created", "changed", "learns", *CampaignState)),
    *(f"search.{word}" for word in ("asked", "ended")),
    *(f"trial.{word}" for word in ("planned", "submitted", "waits", "running", "done")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    # Grows over all campaigns, in the order of commits.
    id: int
    campaign_id: str
    at: float
    kind: str
    # Plain JSON values.
    data: dict[str, object]


def new_id(name: str) -> str:
    """A campaign's id: readable, safe in file names, URLs and schedulers; the name's letters and some random ones."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:30].strip("-") or "campaign"
    return f"{slug}-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths of meshtune's files under one root. Creates nothing."""

    root: Path

    @property
    def database_url(self) -> str:
        return "sqlite:///" + str(self.root / DATABASE).replace("%", "%25").replace("?", "%3F")

    def campaign(self, campaign_id: str) -> Path:
        return self.root / "campaigns" / campaign_id

    def job(self, campaign_id: str, job_name: str) -> Path:
        """The folder of one attempt's job: its job file, result and logs."""
        return self.campaign(campaign_id) / job_name

    @property
    def bin(self) -> Path:
        """Folders of campaigns that are being deleted; on their file system, so that a rename moves them there."""
        return self.root / "campaigns.bin"

    def export(self, job_name: str) -> Path:
        """The folder of a job that was exported over the network, which only its recipient creates."""
        return self.root / "exports" / job_name

    @property
    def limits(self) -> Path:
        """The limits of all campaigns together, an optional file."""
        return self.root / "limits.yaml"

    def holder(self, name: str) -> Path:
        """The file that a process locks while it lives and drives campaigns."""
        return self.root / "holders" / name

    @property
    def report_key(self) -> Path:
        """The private key behind the tokens of jobs that report over HTTP."""
        return self.root / "report.key"

    @property
    def service(self) -> Path:
        """Where the service that runs on this home answers; locked while it lives (`tuner.cli.signing_in`)."""
        return self.root / "service.json"

    def runner(self, kind: str) -> Path:
        """A runner's own files, shared by all campaigns of this home."""
        return self.root / kind
