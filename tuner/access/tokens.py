"""Tokens with scopes, an end and quotas; records of the audit log; secrets in files and the environment.

A secret is shown once, when it is made, and only its digest is kept. Its 256 random bits need no salt and no slow
hash: nobody guesses them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path

from meshtune.search_spaces.checks import Checks, InvalidValue, Problem

PREFIX = "mt_"
DAY_S = 86400.0
TRIALS_WITHIN_S = DAY_S
DEVICE_HOURS_WITHIN_S = 30 * DAY_S
DEFAULT_EXPIRES = "90d"
NEVER = "never"
# Readable in a log and in a table, and never taken for a path or a header.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SPAN = re.compile(r"([0-9]{1,6})([hdw])")
_SPAN_S = {"h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
# A record goes when it is older, and the oldest go when there are more.
KEPT_S = 400 * 86400.0
MAX_RECORDS = 1_000_000
# Callers from outside decide how long the texts are; a line of a log stays one.
MAX_CHARACTERS = 500
DATABASE_FILE = "MESHTUNE_DB_FILE"
TOKEN_VARIABLES = ("MESHTUNE_TOKEN", "MESHTUNE_TOKEN_FILE")
# Variables that no job sees, nor a scheduler's command that may hand its environment on.
SECRET_VARIABLES = (*TOKEN_VARIABLES, "MESHTUNE_DB", DATABASE_FILE)
_PASSWORD = re.compile(r"://[^/@]*:[^@]+@")


class Scope(StrEnum):
    """What a token allows. COMMAND: a spec may name what is executed, and files. ADMIN contains all others."""

    READ = "read"
    LAUNCH = "launch"
    COMMAND = "command"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """How much one token may use; None: no limit."""

    # Active at once.
    campaigns: int | None = None
    # Planned within a day.
    trials: int | None = None
    # Within 30 days.
    device_hours: float | None = None

    def __post_init__(self) -> None:
        checks = Checks()
        checks.whole(
            0, **{name: n for name, n in (("campaigns", self.campaigns), ("trials", self.trials)) if n is not None}
        )
        hours = self.device_hours
        checks.require(hours is None or 0 <= hours < inf, "device_hours", f"must be finite, not negative: {hours}")
        checks.done()


UNLIMITED = Quotas()


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """How much a token uses now of its quotas, by the same names."""

    campaigns: int
    trials: int
    device_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token as it is kept. Times are epoch seconds."""

    name: str
    # Of the secret, hexadecimal.
    sha256: str
    scopes: frozenset[Scope]
    created_at: float
    # None: never.
    expires_at: float | None
    last_used_at: float | None = None
    revoked_at: float | None = None
    quotas: Quotas = UNLIMITED

    def __post_init__(self) -> None:
        checks = Checks()
        checks.require(
            NAME.fullmatch(self.name) is not None,
            "name",
            f"must be 1 to 64 letters, digits, '.', '_', '@' and '-', with a letter or digit first, not {self.name!r}",
        )
        checks.require(bool(self.scopes), "scopes", f"must be some of {', '.join(Scope)}")
        checks.done()

    def refusal(self, now: float) -> str:
        """Why it opens nothing any more, for people; empty where it does."""
        if self.revoked_at is not None:
            return "the token was revoked"
        return "the token has expired" if self.expires_at is not None and now >= self.expires_at else ""

    def matches(self, secret: str) -> bool:
        """Whether this is its secret, in a time that tells nothing of the digest."""
        return hmac.compare_digest(self.sha256, digest(secret))


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """The sha256 of a secret, hexadecimal: all that is kept of it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def allows(scopes: Iterable[Scope], wanted: Scope) -> bool:
    return not {wanted, Scope.ADMIN}.isdisjoint(scopes)


def expiry(text: str, now: float) -> float | None:
    """When a token that is made now ends: after `12h`, `90d` or `8w`, or, with `never`, not at all: None.

    Raises InvalidValue.
    """
    if text == NEVER:
        return None
    found = _SPAN.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise InvalidValue([Problem("expires", f"must be such as 12h, 90d, 8w or {NEVER}, not {text!r}")])
    return now + int(found[1]) * _SPAN_S[found[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One thing that was done or refused, without secrets."""

    # Grows with time; 0 before it is stored.
    id: int = 0
    at: float
    # The name of the caller's token; empty for nobody known.
    token: str
    # Such as "POST /v1/campaigns/{campaign_id}:pause" or "token create".
    action: str
    object: str = ""
    # "done", or the status and kind of a refusal.
    outcome: str = "done"
    detail: str = ""


def database_url(given: str) -> str:
    """The database URL of a command: as it was given, else the text of the file that MESHTUNE_DB_FILE names.

    A password among the arguments is seen by everybody on this machine, and gets a warning. Raises OSError.
    """
    file = os.environ.get(DATABASE_FILE, "")
    if not given and file:
        return Path(file).read_text(encoding="utf-8", errors="replace").strip()
    if _PASSWORD.search(given) and any(given in word for word in sys.argv):
        sys.stderr.write(
            "meshtune: the password in --db is shown by the process list; "
            f"set MESHTUNE_DB, or {DATABASE_FILE} to a file with the URL, instead\n"
        )
    return given


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600 from its first moment on, in place of what is there. Raises OSError."""
    path.unlink(missing_ok=True)
    # O_EXCL: not through a link that somebody else put there meanwhile.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
