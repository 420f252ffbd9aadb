"""Another user for the jobs on this machine, so that what a spec runs has none of the service's rights.

The service is root then. A job has that user's rights and its own folder alone: of what lies above it may pass through,
but list and read nothing; when it is over its folder is the service's, which no later job reads. Jobs that run at the
same time are one user's and can reach each other. See docs/decisions/service.md#d0026."""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshtune.search_spaces.checks import InvalidValue, Problem

# Names the user in the environment of what starts jobs; not set, or empty: they run as their service does.
RUN_AS = "MESHTUNE_RUN_AS"
# Processes and threads of the user at once, over all jobs.
MOST_TASKS = 16_384
# The numbers in Linux's prctl.h; its capabilities are fewer than 64.
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _CAPABILITIES = 24, 38, 64


@dataclass(frozen=True, slots=True)
class JobUser:
    name: str
    uid: int
    gid: int
    home: str

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "TMPDIR": "/tmp"}

    def open_way(self, folder: Path, top: Path) -> None:
        """Let the user pass through `top` and what lies between it and `folder`, nobody else, and shut the rest of
        `top`. Raises OSError."""
        for each in top.iterdir():
            if each not in folder.parents and not each.is_symlink():
                with suppress(FileNotFoundError):  # a draft, or a file that the database had for a moment
                    _narrow(each, 0o700)
        for each in (top, *(above for above in folder.parents if top in above.parents)):
            os.chown(each, -1, self.gid)
            each.chmod(0o710)

    def give(self, folder: Path) -> None:
        """Make a folder of ours the user's, with the files in it, none of which a job has written. Raises OSError."""
        for each in folder.iterdir():
            os.chown(each, self.uid, self.gid, follow_symlinks=False)
        os.chown(folder, self.uid, self.gid)
        folder.chmod(0o700)

    def become(self) -> None:
        """Take on the user's rights for ever: no capability, and no program that would give any. Raises OSError.

        What setpriv does, which root would have to start with the job's own environment, LD_PRELOAD included."""
        for capability in range(_CAPABILITIES):
            if not _prctl(_PR_CAPBSET_DROP, capability):
                break  # past the last
        resource.setrlimit(resource.RLIMIT_NPROC, (MOST_TASKS, MOST_TASKS))
        os.initgroups(self.name, self.gid)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        os.umask(0o077)


def job_user(name: str | None = None) -> JobUser | None:
    """The user of this name, by default the one that the environment names; None for none. Raises InvalidValue for one
    that jobs cannot be run as."""
    chosen = os.environ.get(RUN_AS, "") if name is None else name
    if not chosen:
        return None
    try:
        entry = pwd.getpwnam(chosen)
    except KeyError:
        raise InvalidValue([Problem(RUN_AS, f"there is no user {chosen!r}")]) from None
    if os.geteuid() != 0:
        problem = f"only root can run jobs as {chosen}, and this process is the user {os.geteuid()}"
        raise InvalidValue([Problem(RUN_AS, problem)])
    if entry.pw_uid == 0:
        raise InvalidValue([Problem(RUN_AS, f"{chosen} is root, whose jobs could do everything")])
    return JobUser(chosen, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def take_back(folder: Path) -> None:
    """Let nobody but us into a job's folder any more. Raises OSError."""
    os.chown(folder, os.geteuid(), os.getegid(), follow_symlinks=False)
    folder.chmod(0o700)


def shut_home(home: Path, user: JobUser) -> None:
    """Leave jobs no way to anything in the home but their own folders: what others were able to read, earlier jobs'
    folders included, is ours alone. Raises InvalidValue where jobs could not reach the home, and OSError."""
    for above in home.parents:
        known = above.stat()
        shift = 6 if known.st_uid == user.uid else 3 if known.st_gid == user.gid else 0
        if not known.st_mode >> shift & 1:
            problem = f"{user.name} cannot pass through {above} to its jobs' folders in {home}"
            raise InvalidValue([Problem(RUN_AS, problem)])
    (home / "campaigns").mkdir(exist_ok=True)
    for folder in home.glob("campaigns/*"):
        _narrow(folder, 0o710)
    user.open_way(home / "campaigns" / "any", home)


def _narrow(path: Path, mode: int) -> None:
    """Take away the permissions that are not in the mode."""
    present = path.stat().st_mode & 0o777
    if present & ~mode:
        path.chmod(present & mode)


def _prctl(option: int, argument: int) -> bool:
    """False where the argument is none that the kernel knows. Raises OSError."""
    unsigned = ctypes.c_ulong
    call = ctypes.CDLL(None, use_errno=True).prctl
    if call(option, unsigned(argument), unsigned(0), unsigned(0), unsigned(0)) == 0:
        return True
    if ctypes.get_errno() == errno.EINVAL:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
