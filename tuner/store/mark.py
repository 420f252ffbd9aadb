"""The mark of a SQLite database: a small file beside it that says which database it is, and how much was written to it.

SQLite opens what it finds. A file that was emptied, replaced or restored, or whose write-ahead log is damaged or gone,
is a sound database to it: that of another day, or a new one. So each database gets an application id and an id of its
own when it is made, and after each commit its mark gets the numbers of events and audit records that were written. A
database that is not the mark's, or has less than the mark, is refused before anything is written to it. One without a
mark gets one: it was copied to where it is.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshtune.runners.job_files import opened
from meshtune.tuner.store.errors import SQLITE_CODES, StoreUnavailable

SUFFIX = ".mark"
# "mesh" as bytes.
APPLICATION_ID = 0x6D657368
_FORM = re.compile(r"([0-9a-f]{8}) ([0-9]{20})\n")


@dataclass(frozen=True, slots=True)
class Mark:
    """id: of the database. written: grows with each commit that tells of something."""

    id: int
    written: int


def path_of(file: Path) -> Path:
    return file.with_name(file.name + SUFFIX)


def require_same(file: Path) -> None:
    """Return where the file is what its mark says, or there is neither, or no mark. Writes nothing.

    Raises StoreUnavailable for another database, for one that has lost something or has two names, for what is none.
    """
    if file.exists() and file.stat().st_nlink > 1:  # SQLite keeps a log beside each name
        message = f"{file} has other names, by hard links: keep one of those in `find / -xdev -samefile {file}`"
        raise StoreUnavailable(message)
    path = path_of(file)
    advice = f"restore the newest backup, or remove {path} to go on with what is there"
    with suppress(FileNotFoundError):
        known = _FORM.fullmatch(text := path.read_text(encoding="ascii", errors="replace"))
        if known is None:
            raise StoreUnavailable(f"{path}, the mark of {file}, is damaged: {text[:60]!r}; {advice}")
        _compare(file, Mark(int(known[1], 16), int(known[2])), advice)
        return
    if file.exists() and file.stat().st_size:
        _look(file)


def _compare(file: Path, mark: Mark, advice: str) -> None:
    # Before SQLite sees it: it deletes the log of an empty file.
    actual = _look(file) if file.exists() and file.stat().st_size else None
    if actual is None:
        state = f"is empty, or its log {file.name}-wal is damaged or gone" if file.exists() else "is gone"
        raise StoreUnavailable(f"{file} {state}: it had {mark.written} events and audit records; {advice}")
    if actual.id != mark.id:
        raise StoreUnavailable(f"{file} is another database than the one that was there; {advice}")
    if actual.written < mark.written:
        raise StoreUnavailable(
            f"{file} has {actual.written} events and audit records, and had {mark.written}: its log {file.name}-wal is "
            f"damaged or gone, or it is an older copy; {advice}"
        )


def _look(file: Path) -> Mark | None:
    """What the file is, by a connection that changes neither it nor its log; None for one without tables. Raises
    StoreUnavailable for what is no database of ours."""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            if tables and application != APPLICATION_ID:
                message = f"{file} is a database of another program (application id {application})"
                raise StoreUnavailable(message)
            return mark_in(connection) if tables else None
    except sqlite3.Error as error:
        meaning, transient = SQLITE_CODES.get(error.sqlite_errorcode & 0xFF, ("cannot be read", False))
        raise StoreUnavailable(f"the SQLite database {file} {meaning} ({error})", transient=transient) from error


def mark_in(connection: Any) -> Mark:
    """As a transaction of the driver sees it."""
    (id,) = connection.execute("PRAGMA user_version").fetchone()
    (written,) = connection.execute("SELECT total(seq) FROM sqlite_sequence").fetchone()
    return Mark(id, int(written))


def stamp(connection: Any) -> None:
    """Give a new database its ids, within the transaction of the driver that makes its tables."""
    if connection.execute("PRAGMA application_id").fetchone() == (0,):
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {secrets.randbelow(2**31 - 1) + 1}")


def require_sound(file: Path) -> None:
    """Raises StoreUnavailable for a damaged file; it is read wholly only where it was not closed well, as after a kill,
    or with the log of another copy beside it."""
    log = file.with_name(file.name + "-wal")
    if not log.exists() or log.stat().st_size == 0:
        return
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            verdict = str(error)
    if verdict != "ok":
        message = f"{file} is damaged: {' '.join(verdict.split())}; restore the newest backup, and remove {log} first"
        raise StoreUnavailable(message)


def keep(file: Path, mark: Mark, mode: int) -> None:
    """Write the mark, after the commit; mode: of a new one. In place, so that a full disk takes it too; where it cannot
    be written, the old one says less and nothing wrong."""
    with suppress(OSError), opened(path_of(file), os.O_WRONLY | os.O_CREAT) as descriptor:
        new = os.fstat(descriptor).st_size == 0
        os.pwrite(descriptor, f"{mark.id:08x} {mark.written:020d}\n".encode("ascii"), 0)
        if new:
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
