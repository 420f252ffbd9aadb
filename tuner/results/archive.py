"""An exported setting as one archive: a folder with all files of its format and a README that says what it is, how it
is started, and what to be aware of."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import PurePosixPath
from textwrap import wrap

from meshtune.runners.programs.dialects.base import Files
from meshtune.tuner.results.handover import Handover

README = "README.txt"
WIDTH = 110
_PLAIN, _PROGRAM = 0o644, 0o755


def pack(folder: str, files: Files) -> bytes:
    """A .tar.gz of the files in this folder; equal files give equal bytes. A file that begins with a line for a shell
    can be executed. Raises ValueError for a name that would leave the folder."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, text in sorted(files.items()):
            content = text.encode("utf-8")
            entry = tarfile.TarInfo(f"{folder}/{_safe(name)}")
            entry.size, entry.mode = len(content), _PROGRAM if text.startswith("#!") else _PLAIN
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def readme(title: str, command: str | None, note: str, handover: Handover | None, directory: str) -> str:
    """title: of the setting and where it is from. command: that starts it; None: nothing does. note: what it is not.
    directory: where the files expect to lie; empty: anywhere."""
    parts = [title]
    if note:
        parts.append(note)
    if command is not None:
        parts.append(f"Start it in {directory or 'this folder'}:\n\n    {command}")
    if handover is not None:
        parts += [f"Warning: {handover.warning}.", f"{handover.offer}:\n\n    {handover.confirm}"]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _wrapped(part: str) -> str:
    lines = part.split("\n")
    return "\n".join(line if line.startswith(" ") else "\n".join(wrap(line, WIDTH)) for line in lines)


def _safe(name: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name of a file in a folder")
    return str(path)
