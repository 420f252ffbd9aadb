"""Reads the logs in a job's folder, and nothing that a link could lead to.

A job may write anything into its folder. So names are looked up in the folder alone, links are not followed, and only
regular files with a log's name are opened: neither the job's token, nor a pipe that nobody writes to.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

# Of ranks (`runners.processes.gang.log_path`) and of schedulers, and what training codes call theirs.
SUFFIXES = (".log", ".out", ".err")
MAX_FILES = 200
# A job may leave any number of others.
MAX_ENTRIES = 20_000
_CHUNK_BYTES = 64 * 1024
_NUMBERS = re.compile(r"(\d+)")


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
