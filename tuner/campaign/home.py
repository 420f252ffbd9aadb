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
    def bin(self) -> Path:
        """What is being deleted. On the file system of the campaigns, so that a rename moves it there."""
        return self.root / "campaigns.bin"

    def export(self, job_name: str) -> Path:
        """Where a job that was exported over the network would lie; nobody writes it but who took it."""
        return self.root / "exports" / job_name

    @property
    def limits(self) -> Path:
        """What all campaigns may use together; there only where somebody wrote it."""
        return self.root / "limits.yaml"

    def holder(self, name: str) -> Path:
        """The file that a process locks while it lives and drives campaigns."""
        return self.root / "holders" / name

    @property
    def report_key(self) -> Path:
        """What the tokens of jobs that report over HTTP are made with; for its owner's eyes alone."""
        return self.root / "report.key"

    def runner(self, kind: str) -> Path:
        """What a runner keeps for itself, shared by all campaigns of this home."""
        return self.root / kind
