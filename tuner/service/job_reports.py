"""Reports of jobs over HTTP: a token for each attempt, made of the job's name and its expiry, and not stored here.

The key is a file in the home that its owner alone can read; a token is a file in the job's own folder
(`runners.report.TOKEN_FILE`), never in its arguments, environment or script. A job's token can end that one job's
measurement, and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import replace

from meshtune.runners.base import JobSpec
from meshtune.runners.outcome import RESULT_FILE, parse_result
from meshtune.runners.report import REPORT_URL, TOKEN_FILE
from meshtune.tuner.access.credentials import write_private
from meshtune.tuner.campaign.home import Home

# A job may wait so long in a scheduler's queue, beside its own time limit.
SLACK_S = 7 * 86400.0
MAX_BYTES = 1_000_000


class ReportRefused(Exception):
    """The token does not open this job's report; the same request fails again."""


class Reports:
    """The reports of one home's jobs. url: where jobs reach the service; empty: they do not report over HTTP."""

    def __init__(self, home: Home, url: str) -> None:
        self._home = home
        self.url = url.rstrip("/")

    def equip(self, job: JobSpec, now: float) -> JobSpec:
        """The job with where to report to; its token is put into its folder. May be repeated. Raises OSError."""
        if not self.url:
            return job
        job.directory.mkdir(parents=True, exist_ok=True)
        expires = int(now + job.time_limit_s + SLACK_S)
        write_private(job.directory / TOKEN_FILE, token_of(self._key(), job.name, expires))
        return replace(job, env={**job.env, REPORT_URL: f"{self.url}/v1/reports/{job.name}"})

    def check(self, job_name: str, token: str, now: float) -> None:
        """Raises ReportRefused for a token that is not this job's, or has ended."""
        expires = token.partition(".")[0]
        if not (expires.isascii() and expires.isdigit() and len(expires) < 15):
            raise ReportRefused("this is no token of a job")
        if not hmac.compare_digest(token_of(self._key(), job_name, int(expires)).encode(), token.encode()):
            raise ReportRefused(f"this is not the token of the job {job_name}")
        if now >= int(expires):
            raise ReportRefused(f"the token of the job {job_name} has expired")

    def keep(self, campaign_id: str, job_name: str, text: str) -> bool:
        """Write the job's result file, whole at once; False where there is one, which stays. Raises ResultMalformed,
        OSError."""
        parse_result(text)
        folder = self._home.job(campaign_id, job_name)
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{RESULT_FILE}.{secrets.token_hex(8)}"
        try:
            with draft.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, folder / RESULT_FILE)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def _key(self) -> bytes:
        """Made once; of two processes that make it at once, both use the one that was there first."""
        path = self._home.report_key
        with suppress(FileNotFoundError):
            return path.read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        write_private(draft, secrets.token_hex(32))
        try:
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
        return path.read_bytes()


def token_of(key: bytes, job_name: str, expires: int) -> str:
    """The expiry in epoch seconds, a dot, and the HMAC of the name and the expiry."""
    made = hmac.new(key, f"{job_name}\n{expires}".encode(), hashlib.sha256).hexdigest()
    return f"{expires}.{made}"
