"""Files in jobs' folders: results that jobs report over HTTP, and logs that people read.

A report needs the attempt's token, made of the job's name and its expiry, and not stored here. The key is a file in
the home that its owner alone can read; a token is a file in the job's own folder (`runners.report.TOKEN_FILE`), never
in its arguments, environment or script. It can end that one job's measurement, and nothing else.

A job may write anything into its folder. So names of logs are looked up in the folder alone, links are not followed,
and only regular files with a log's name are opened: neither the job's token, nor a pipe that nobody writes to.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from meshtune.runners.base import JobSpec
from meshtune.runners.outcome import RESULT_FILE, parse_result
from meshtune.runners.report import REPORT_URL, TOKEN_FILE
from meshtune.tuner.access.tokens import write_private
from meshtune.tuner.campaign.campaign import Home

# A job may wait so long in a scheduler's queue, beside its own time limit.
SLACK_S = 7 * 86400.0
MAX_BYTES = 1_000_000
# Of ranks (`runners.processes.gang.log_path`) and of schedulers, and what training codes call theirs.
SUFFIXES = (".log", ".out", ".err")
MAX_FILES = 200
# A job may leave any number of others.
MAX_ENTRIES = 20_000
_CHUNK_BYTES = 64 * 1024
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


class NoSuchLog(LookupError):
    """The job's folder has no log of that name; it may have been pruned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """modified_at: epoch seconds."""

    name: str
    size_bytes: int
    modified_at: float


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A log as long as it was when it was opened. Close it."""

    descriptor: int
    size_bytes: int

    def read(self, first: int, count: int) -> Iterator[bytes]:
        """`count` bytes from `first` on, in chunks; fewer where the file was cut since."""
        while count > 0 and (chunk := os.pread(self.descriptor, min(count, _CHUNK_BYTES), first)):
            first, count = first + len(chunk), count - len(chunk)
            yield chunk

    def close(self) -> None:
        os.close(self.descriptor)


def list_logs(folder: Path) -> list[LogFile]:
    """The logs, rank-2.log before rank-10.log, at most MAX_FILES; none where the folder is gone."""
    found: list[LogFile] = []
    with suppress(FileNotFoundError, NotADirectoryError), _folder(folder) as descriptor, os.scandir(descriptor) as all_:
        for entry in islice(all_, MAX_ENTRIES):
            if _is_name(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    known = entry.stat(follow_symlinks=False)
                    found.append(LogFile(name=entry.name, size_bytes=known.st_size, modified_at=known.st_mtime))
    return sorted(found, key=lambda file: _natural(file.name))[:MAX_FILES]


def open_log(folder: Path, name: str) -> OpenLog:
    """Raises NoSuchLog."""
    missing = NoSuchLog(f"the job's folder has no log {name!r}; `logs` lists what it has")
    if not _is_name(name):
        raise missing
    try:
        with _folder(folder) as parent:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        raise missing from None
    known = os.fstat(descriptor)
    if not stat.S_ISREG(known.st_mode):
        os.close(descriptor)
        raise missing
    return OpenLog(descriptor, known.st_size)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_name(name: str) -> bool:
    """Whether a file in a folder could be a log; names that JSON and URLs cannot hold are none."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and "/" not in name and name.isprintable()


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBERS.split(name)]
