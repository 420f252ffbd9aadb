"""Files that jobs of ended campaigns left: their folders, and what runners keep of them. What the jobs measured is in
the database and stays."""

from __future__ import annotations

import os
import re
import stat
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from meshtune.runners.registry import runners
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.units import gibibytes

# Of an attempt, and of a trial that was measured again beside them; the first part is the campaign's id.
_JOB = re.compile(r"(.+)-t\d{4,}-(?:a\d+|again-[0-9a-f]{6})(?:\.json)?")
# Where runners remember jobs, below their folders.
_KEPT = ("jobs/*", "claims/*", "over/*", "*/jobs/*")


@dataclass(slots=True)
class Leftovers:
    """Of one campaign. paths: files and folders of jobs; the numbers are of the files in them."""

    paths: list[Path] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.files} files, {gibibytes(self.size_bytes)}"


def find_leftovers(home: Home, over: Collection[str], before: float) -> dict[str, Leftovers]:
    """What jobs of these campaigns left, as far as nothing of it was changed since then."""
    found: defaultdict[str, Leftovers] = defaultdict(Leftovers)
    for campaign_id, path in job_files(home):
        entries = list(_entries(path)) if campaign_id in over else []
        if entries and max(entry.st_mtime for entry in entries) < before:
            left, sizes = found[campaign_id], [one.st_size for one in entries if not stat.S_ISDIR(one.st_mode)]
            left.paths.append(path)
            left.files, left.size_bytes = left.files + len(sizes), left.size_bytes + sum(sizes)
    return found


def _entries(path: Path) -> Iterator[os.stat_result]:
    """What is at the path and below it, however deep, as far as it may be looked at; another process cleans too."""
    folders = [str(path)]
    with suppress(OSError):
        yield os.lstat(path)
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as inside:
            for entry in inside:
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def job_files(home: Home) -> Iterator[tuple[str, Path]]:
    """The folder of each job, and the files and folders in which runners remember it, with the campaign's id."""
    kept = (f"{home.runner(kind).name}/{place}" for kind in runners() for place in _KEPT)
    for pattern in ("campaigns/*/*", *kept):
        for path in home.root.glob(pattern):
            if job := _JOB.fullmatch(path.name):
                yield job[1], path


def discard(home: Home, paths: Iterable[Path]) -> None:
    """Remove files and folders of the home. Raises OSError, of the last that cannot be had; the others are removed.

    By a rename first: a process that dies meanwhile leaves a part of a folder in the bin, which the next call empties,
    and never one in its old place that looks whole."""
    home.bin.mkdir(parents=True, exist_ok=True)
    trouble = None
    for path in paths:
        try:
            path.rename(home.bin / f"{path.name}-{uuid.uuid4().hex}")
        except FileNotFoundError:  # it never was, or somebody pruned it
            pass
        except OSError as error:
            trouble = error
    _empty(home.bin)
    if trouble is not None:
        raise trouble


def _empty(bin: Path) -> None:
    """Remove what can be removed: another call may be at it. Folders in folders are brought up, so that none is too
    deep, and no link is followed."""
    folders = [str(bin)]
    while folders:
        folder = folders.pop()
        with suppress(OSError):
            for entry in [*os.scandir(folder)]:
                with suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                    elif folder == str(bin):
                        folders.append(entry.path)
                    else:
                        os.rename(entry.path, lifted := str(bin / uuid.uuid4().hex))
                        folders.append(lifted)
        if folder != str(bin):
            with suppress(OSError):
                os.rmdir(folder)
