"""Tokens with scopes, projects, an end and quotas; the rule of who may read and change whose campaigns; records of the
audit log; secrets in files and the environment.

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
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from meshtune.search_spaces.checks import Amount, Checked, Checks, Count, InvalidValue, Problem, unfit_name

PREFIX = "mt_"
DAY_S = 86400.0
TRIALS_WITHIN_S = DAY_S
DEVICE_HOURS_WITHIN_S = 30 * DAY_S
DEFAULT_EXPIRES = "90d"
NEVER = "never"
_SPAN = re.compile(r"([0-9]{1,6})([hdw])")
_SPAN_S = {"h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
DATABASE_FILE = "MESHTUNE_DB_FILE"
TOKEN, TOKEN_FILE = "MESHTUNE_TOKEN", "MESHTUNE_TOKEN_FILE"
# Variables that no job sees, nor a scheduler's command that may hand its environment on.
SECRET_VARIABLES = (TOKEN, TOKEN_FILE, "MESHTUNE_DB", DATABASE_FILE)
_PASSWORD = re.compile(r"://[^/@]*:[^@]+@")


def own_token() -> str:
    """The caller's, from MESHTUNE_TOKEN, else from the file that MESHTUNE_TOKEN_FILE names; empty for none. Raises
    OSError and, for what is no text, ValueError."""
    token, file = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    return token if token or not file else Path(file).read_text(encoding="utf-8").strip()


# The end of a project's name in a token that may read its campaigns and change none.
READ_ONLY = ":read"


class Scope(StrEnum):
    """What a token allows. READ_ALL: READ, of everybody's campaigns. COMMAND: a spec may name what is executed, and
    files. ADMIN contains all others."""

    READ = "read"
    READ_ALL = "read:all"
    LAUNCH = "launch"
    COMMAND = "command"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)
# A scope and those that contain it.
_CONTAINED = {scope: frozenset({scope, Scope.ADMIN}) for scope in Scope}
_CONTAINED[Scope.READ] |= {Scope.READ_ALL}


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whose a campaign is. owner: the name of the token that created it, empty for the command line. project: empty
    for none. Neither changes while the campaign exists."""

    owner: str
    project: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What somebody may do, and with whose campaigns: the table of docs/how-to/access.md. The store has `reads` once
    more, in SQL."""

    # Of the token; empty for who owns no campaign.
    name: str = ""
    scopes: frozenset[Scope] = frozenset()
    # NAME: its campaigns are read and changed, and new ones may be put into it; NAME:read: they are read.
    projects: frozenset[str] = frozenset()

    def may(self, scope: Scope) -> bool:
        return not _CONTAINED[scope].isdisjoint(self.scopes)

    @property
    def reads_all(self) -> bool:
        return self.may(Scope.READ_ALL)

    @property
    def readable_projects(self) -> frozenset[str]:
        return frozenset(project.removesuffix(READ_ONLY) for project in self.projects)

    def reads(self, campaign: Ownership) -> bool:
        """Whether it may read the campaign, where it may read at all."""
        return self.reads_all or self._owns(campaign) or campaign.project in self.readable_projects

    def changes(self, campaign: Ownership) -> bool:
        """Whether it may change the campaign, where it may change any."""
        return self._owns(campaign) or self.adds_to(campaign.project)

    def adds_to(self, project: str) -> bool:
        return self.may(Scope.ADMIN) or project in self.projects

    def _owns(self, campaign: Ownership) -> bool:
        return self.name != "" and self.name == campaign.owner


# Whoever works on the database itself, as the command line does.
OPERATOR = Rights(scopes=ALL_SCOPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas(Checked):
    """How much one token may use; None: no limit."""

    # Active at once.
    campaigns: Count | None = None
    # Planned within a day.
    trials: Count | None = None
    # Within 30 days.
    device_hours: Amount | None = None


UNLIMITED = Quotas()


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """How much a token uses now of its quotas, by the same names."""

    campaigns: int
    trials: int
    device_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoamiView:
    """The token that was sent. projects: `NAME`, or `NAME:read` to read only. quotas: null is no limit; campaigns:
    active at once, trials: planned within 24 h, device_hours: within 30 days. used: as they are counted."""

    name: str
    scopes: list[Scope]
    projects: list[str]
    expires_at: datetime | None
    quotas: Quotas
    used: Used


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Rights):
    """One token as it is kept. Times are epoch seconds."""

    # Of the secret, hexadecimal.
    sha256: str
    created_at: float
    # None: never.
    expires_at: float | None
    last_used_at: float | None = None
    revoked_at: float | None = None
    quotas: Quotas = UNLIMITED

    def __post_init__(self) -> None:
        checks = Checks()
        unfit = unfit_name(self.name)
        checks.require(not unfit, "name", unfit)
        checks.require(bool(self.scopes), "scopes", f"must be some of {', '.join(Scope)}")
        for project in sorted(self.projects):
            fit = not unfit_name(project.removesuffix(READ_ONLY))
            checks.require(fit, "projects", f"must be names such as vision or vision{READ_ONLY}, not {project!r}")
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


def expiry(text: str, now: float, name: str = "expires") -> float | None:
    """When a token that is made now ends: after `12h`, `90d` or `8w`, or, with `never`, not at all: None.

    Raises InvalidValue, which names the option.
    """
    if text == NEVER:
        return None
    span = _SPAN.fullmatch(text)
    if span is None or int(span[1]) == 0:
        raise InvalidValue([Problem(name, f"must be such as 12h, 90d, 8w or {NEVER}, not {text!r}")])
    return now + int(span[1]) * _SPAN_S[span[2]]


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
