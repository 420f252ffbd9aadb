"""The errors of the store; `translating` makes them of whatever SQLAlchemy and the drivers raise.

Whatever is raised, the transaction left nothing behind, and trying again fails until what the message names has
changed; only of a StoreUnavailable that is `transient`, waiting can be enough. One exception: a server that is lost
during the commit itself may have committed; the same call then answers IllegalMove or AlreadyExists.

Drivers are told apart by their codes: SQLite's result code, PostgreSQL's SQLSTATE. Only a failed connection to a
PostgreSQL server has no code; its text is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from meshtune.search_spaces.checks import UserError

# https://www.sqlite.org/rescode.html: primary code (the low byte) -> what it means for a user, and whether it may pass.
# A full disk is transient: on a shared machine others free it, and a campaign that waits loses nothing.
SQLITE_CODES: dict[int, tuple[str, bool]] = {
    sqlite3.SQLITE_BUSY: ("is locked by another process", True),
    sqlite3.SQLITE_LOCKED: ("is locked by another connection", True),
    sqlite3.SQLITE_FULL: ("is full, or its disk is", True),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: the disk failed", True),
    sqlite3.SQLITE_READONLY: ("is read-only", False),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened: check that its folder exists and may be written", False),
    sqlite3.SQLITE_PERM: ("may not be accessed by this user", False),
    sqlite3.SQLITE_AUTH: ("may not be accessed by this user", False),
    sqlite3.SQLITE_NOTADB: ("is not a SQLite database", False),
    sqlite3.SQLITE_CORRUPT: ("is damaged", False),
}

# https://www.postgresql.org/docs/current/errcodes-appendix.html: a whole code, or else its class (two characters).
POSTGRES_CODES: dict[str, tuple[str, bool]] = {
    "08": ("lost the connection", True),
    "53": ("is short of resources", True),
    "53100": ("has a full disk", True),
    "53300": ("has too many clients", True),
    "55P03": ("is locked by another process", True),
    "40": ("had to give way to another transaction", True),
    "57": ("was interrupted by its server", True),
    "58": ("has a system error", True),
    "25006": ("is read-only", False),
    "25P03": ("gave up a transaction that stood still", True),
    "28": ("does not accept this user", False),
    "3D": ("does not exist", False),
    "42501": ("may not be changed by this user", False),
    "XX": ("is damaged", False),
}

# A server that answers a connection with a refusal says FATAL; these refusals pass, the others (a wrong password,
# an unknown database or user) do not.
_PASSING_REFUSALS = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots")
# So does a server whose disk has no room for the cache of its catalog that a connection writes
# (src/backend/utils/cache/relcache.c, write_item).
_NO_ROOM = "could not write init file"


class StoreError(UserError):
    """The store could not do it; raised itself where the database refuses a statement, which is a defect. The message
    is fit for a user and holds no password."""


class Unreadable(StoreError):
    """What is stored is not what this meshtune reads; the message names the object, what is wrong, and what helps."""


@contextmanager
def reading_row(what: str, ends: str = "`meshtune clean CAMPAIGN --remove` deletes the campaign") -> Iterator[None]:
    """Raise Unreadable of this object for a row that breaks today's rules. ends: how to be rid of it."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{what} is stored as this meshtune does not read it: {_first_line(error)}"
        raise Unreadable(f"{why}; the version that wrote it does, and {ends}") from error


class NotFound(StoreError):
    """No such object; the message names it."""


class AlreadyExists(StoreError):
    """The campaign's id, or the plan within its campaign, is taken; the message names it."""


class BudgetSpent(StoreError):
    """The campaign's budget has no place for another trial; the message has the numbers."""


class IllegalMove(StoreError):
    """`thing` is in `state` and may not become `wanted`; `because` says why where the two states do not."""

    def __init__(self, thing: str, state: str, wanted: str, because: str = "") -> None:
        self.thing, self.state, self.wanted = thing, state, wanted
        super().__init__(f"{thing} is {state} and cannot become {wanted}" + (f": {because}" if because else ""))


class Outdated(IllegalMove):
    """The campaign was changed since what this was decided on: look at it and decide again."""


class LeaseLost(StoreError):
    """Another process holds the campaign's lease, or nobody does; the message names the campaign and the process."""


class StoreUnavailable(StoreError):
    """The database does not answer or does not take writes. transient: it may pass without a change of settings."""

    def __init__(self, message: str, *, transient: bool = False) -> None:
        self.transient = transient
        super().__init__(message)


class OtherSchema(StoreUnavailable):
    """The schema is not this meshtune's: upgraded meanwhile, or not yet; the message has both."""


@contextmanager
def translating(database: str) -> Iterator[None]:
    """Raise StoreErrors that name `database` in place of those of the libraries below."""
    try:
        yield
    except PoolTimeout as error:
        raise StoreUnavailable(f"{database} has all its connections in use", transient=True) from error
    except DBAPIError as error:
        raise _translated(error, database) from error
    except SQLAlchemyError as error:
        raise StoreError(f"{database} refused: {_first_line(error)}") from error


def _translated(error: DBAPIError, database: str) -> StoreError:
    driver = error.orig
    code = getattr(driver, "sqlite_errorcode", None)
    state = getattr(driver, "sqlstate", None)
    known: tuple[str, bool] | None = None
    if code is not None:
        known = SQLITE_CODES.get(code & 0xFF)
    elif state is not None:
        known = POSTGRES_CODES.get(state) or POSTGRES_CODES.get(state[:2])
    elif error.statement is None or error.connection_invalidated or _is_operational(driver):
        text = str(driver)
        if _NO_ROOM in text:
            return StoreUnavailable(f"{database} has a full disk ({_first_line(driver)})", transient=True)
        refused = "FATAL:" in text and not any(refusal in text for refusal in _PASSING_REFUSALS)
        passing = _is_operational(driver) and not refused
        return StoreUnavailable(f"{database} cannot be reached: {_first_line(driver)}", transient=passing)
    if known is None:
        return StoreError(f"{database} refused: {_first_line(driver)}")
    meaning, transient = known
    return StoreUnavailable(f"{database} {meaning} ({_first_line(driver)})", transient=transient)


def _is_operational(driver: BaseException | None) -> bool:
    """PEP 249 gives every driver an OperationalError of its own."""
    return type(driver).__name__ == "OperationalError"


def _first_line(error: BaseException | None) -> str:
    """Without the statement, the hints and the links that the libraries add below."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
