"""Permissions of the home folder: nobody but its user gets in, unless MESHTUNE_HOME_MODE says otherwise.

Who opens the database has every right: it holds specs, which may name commands, and the digests of all tokens. Commands
need no token for that reason, and the operating system keeps others out, whatever the umask.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from meshtune.runners.registry import runners
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.tuner.campaign.campaign import DATABASE, Home

HOME_MODE = "MESHTUNE_HOME_MODE"
PRIVATE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def home_mode(environment: Mapping[str, str]) -> int:
    """The mode of the home folder: MESHTUNE_HOME_MODE, octal, or 0700. Raises InvalidValue, which names it."""
    text = environment.get(HOME_MODE, "").strip() or f"{PRIVATE:o}"
    try:
        mode = int(text, 8)
    except ValueError:
        mode = 0
    if mode & ~0o777 or mode & stat.S_IRWXU != stat.S_IRWXU or mode & stat.S_IWOTH:
        words = "an octal mode with all rights for the owner, and without writing for others, such as 0700 or 0750"
        raise InvalidValue([Problem(HOME_MODE, f"must be {words}, not {text!r}")])
    return mode


def file_mode(mode: int) -> int:
    """The mode of the database in a home of this mode: as open to the group, closed to others."""
    return mode & 0o660


def prepare_home(home: Home, mode: int) -> list[str]:
    """Make the folder where it is missing, and take from what is there the rights beyond `mode`: from the folder, its
    database and its key. What was changed or should be, for people. Raises OSError.

    What belongs to another user stays as it is, and so does a folder with other things than ours.
    """
    root, messages = home.root, []
    if not root.is_dir():
        root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        root.chmod(mode)
    wide = {path: file_mode(mode) for path in (*root.glob(f"{DATABASE}*"), home.report_key)}
    stranger = next((entry.name for entry in root.iterdir() if not _ours(home, entry)), None)
    if stranger is None:
        wide[root] = mode
    elif _beyond(root, mode):
        messages.append(
            f"{root} keeps its mode, for it holds {stranger} beside the files of meshtune: other users of this machine "
            "may look into it; name a folder of its own by --home"
        )
    tightened = []
    for path, allowed in wide.items():
        if rights := _beyond(path, allowed):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~rights)
            tightened.append(path.name)
    if tightened:
        names = ", ".join(sorted(tightened))
        messages.append(
            f"{root}: closed to other users of this machine, who had rights to {names}; {HOME_MODE} gives them some"
        )
    return messages


def _beyond(path: Path, mode: int) -> int:
    """The rights of others to our file that `mode` does not give them. A group that may pass through a folder, and see
    nothing in it, is that of jobs which run as another user: it stays."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    given = status.st_mode & _OTHERS
    return given & ~mode if status.st_uid == os.geteuid() and given != stat.S_IXGRP else 0


def _ours(home: Home, entry: Path) -> bool:
    folders = (home.campaign("id").parent, home.export("id").parent, home.holder("id").parent, home.bin)
    named = (*folders, home.limits, home.report_key, home.service, *map(home.runner, runners()))
    return entry in named or entry.name.startswith((DATABASE, "."))
