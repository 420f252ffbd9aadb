"""Files in jobs' folders: results that jobs report over HTTP, and logs that people read.

A report needs the attempt's token, made of the job's name and its expiry, and not stored here. The key is a file in
the home that its owner alone can read; a token is a file in the job's own folder (`runners.report.TOKEN_FILE`), never
in its arguments, environment or script. It can end that one job's measurement, and nothing else.

A job may write anything into its folder: it is read by `runners.job_files`, and of that only files with a log's name,
not the job's token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshtune.runners.base import JobSpec
from meshtune.runners.job_files import OpenFile, UnfitFile, list_entries, open_file, opened_folder, read_document
from meshtune.runners.json_files import write_new
from meshtune.runners.outcome import RESULT_FILE, parse_result
from meshtune.runners.report import REPORT_URL, TOKEN_FILE
from meshtune.tuner.access.tokens import write_private
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.results.quantities import rfc3339
from meshtune.tuner.service.views.trials import LogView
from meshtune.tuner.store import NotFound

# A job may wait so long in a scheduler's queue, beside its own time limit.
SLACK_S = 7 * 86400.0
MAX_BYTES = 1_000_000
# Of ranks (`runners.processes.gang.log_path`) and of schedulers, and what training codes call theirs.
SUFFIXES = (".log", ".out", ".err")
MAX_FILES = 200
_NUMBERS = re.compile(r"(\d+)")


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
        return write_new(folder, RESULT_FILE, text)

    def kept(self, campaign_id: str, job_name: str) -> str:
        """The text of the job's result file, empty where there is none. Raises OSError."""
        with suppress(FileNotFoundError):
            return read_document(self._home.job(campaign_id, job_name) / RESULT_FILE)
        return ""

    def _key(self) -> bytes:
        """Made once; of two processes that make it at once, both use the one that was there first."""
        path = self._home.report_key
        with suppress(FileNotFoundError):
            return path.read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path.parent.resolve(), path.name, secrets.token_hex(32), mode=0o600)
        return path.read_bytes()


def token_of(key: bytes, job_name: str, expires: int) -> str:
    """The expiry in epoch seconds, a dot, and the HMAC of the name and the expiry."""
    made = hmac.new(key, f"{job_name}\n{expires}".encode(), hashlib.sha256).hexdigest()
    return f"{expires}.{made}"


def list_logs(folder: Path) -> list[LogView]:
    """The logs, rank-2.log before rank-10.log, at most MAX_FILES; none where the folder is gone. Raises OSError."""
    logs: list[LogView] = []
    for name in sorted(filter(_is_name, list_entries(folder)), key=_natural):
        with suppress(FileNotFoundError), opened_folder(folder) as descriptor:
            known = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(known.st_mode):
                logs.append(LogView(name=name, bytes=known.st_size, modified_at=rfc3339(known.st_mtime)))
        if len(logs) == MAX_FILES:
            break
    return logs


def open_log(folder: Path, name: str) -> OpenFile:
    """Raises NotFound; the log may have been pruned."""
    missing = NotFound(f"the job's folder has no log {name!r}; `logs` lists what it has")
    if not _is_name(name):
        raise missing
    try:
        return open_file(folder / name)
    except (OSError, UnfitFile):
        raise missing from None


def _is_name(name: str) -> bool:
    """Whether a file in a folder could be a log; names that JSON and URLs cannot hold are none."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and "/" not in name and name.isprintable()


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBERS.split(name)]
