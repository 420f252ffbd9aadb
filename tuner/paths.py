"""Where meshtune keeps its files: one folder, its home, with the database, the jobs' folders and the runners' own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """Paths under one root. Nothing is created by asking for one."""

    root: Path

    @property
    def database_url(self) -> str:
        """The default database."""
        return f"sqlite:///{self.root / 'meshtune.db'}"

    def campaign(self, campaign_id: str) -> Path:
        return self.root / "campaigns" / campaign_id

    def job(self, campaign_id: str, job_name: str) -> Path:
        """The folder of one attempt's job: its job file, result and logs."""
        return self.campaign(campaign_id) / job_name

    @property
    def limits(self) -> Path:
        """What all campaigns may use together; there only where somebody wrote it."""
        return self.root / "limits.yaml"

    def runner(self, kind: str) -> Path:
        """What a runner keeps for itself, shared by all campaigns of this home."""
        return self.root / kind
