"""Tokens and the audit log, in the store's database; the same promises as `Store` makes."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from meshtune.tuner.access.audit import KEPT_S, MOST_CHARACTERS, MOST_ENTRIES, Deed, Entry
from meshtune.tuner.access.tokens import Quotas, Scope, Token, Used
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store import access_usage
from meshtune.tuner.store.access_keys import Keys
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import AlreadyExists, NotFound
from meshtune.tuner.store.tables import attempts, audit, tokens, trials

# How many entries are written before old ones are looked for.
PRUNE_EVERY = 1000
_QUOTAS = tuple(field.name for field in fields(Quotas))


class Access:
    """Who may do what, who did what, and what each used. `Store.access`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.keys = Keys(database)

    def create(self, token: Token) -> None:
        """Keep a new token; one of that name that opens nothing any more is replaced. Raises AlreadyExists."""
        with self._database.writing() as connection:
            row = connection.execute(select(tokens).where(tokens.c.name == token.name)).one_or_none()
            if row is not None:
                if not _token(row).refusal(token.created_at):
                    raise AlreadyExists(f"there is a token {token.name} already; revoke it first")
                connection.execute(delete(tokens).where(tokens.c.name == token.name))
            connection.execute(insert(tokens), _row(token))

    def revoke(self, name: str, now: float) -> Token:
        """The token, which opens nothing from now on; one that was revoked before stays so. Raises NotFound."""
        with self._database.writing() as connection:
            gone = update(tokens).where(tokens.c.name == name, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
            connection.execute(gone)
            row = connection.execute(select(tokens).where(tokens.c.name == name)).one_or_none()
            if row is None:
                raise NotFound(f"there is no token {name}")
            return _token(row)

    def tokens(self) -> list[Token]:
        """All of them, those that open nothing any more included, by name."""
        with self._database.reading() as connection:
            return [_token(row) for row in connection.execute(select(tokens).order_by(tokens.c.name))]

    def by_digest(self, sha256: str) -> Token | None:
        with self._database.reading() as connection:
            row = connection.execute(select(tokens).where(tokens.c.sha256 == sha256)).one_or_none()
            return None if row is None else _token(row)

    def used_at(self, sha256: str, now: float) -> None:
        """Keep when the token was last used."""
        with self._database.writing() as connection:
            connection.execute(update(tokens).where(tokens.c.sha256 == sha256).values(last_used_at=now))

    def used(self, owner: str, now: float) -> Used:
        """What the campaigns of this owner use, as its quotas count it."""
        with self._database.reading() as connection:
            return access_usage.used(connection, owner, now)

    def quotas(self, owner: str) -> Quotas:
        """Those of the token of that name; none where there is no such token."""
        with self._database.reading() as connection:
            return access_usage.quotas_of(connection, owner)

    def campaign_in_flight(self, job_name: str) -> str:
        """The campaign whose attempt has this job's name. Raises NotFound where there is none, or it is over."""
        query = select(trials.c.campaign_id).join(attempts, attempts.c.trial_id == trials.c.id)
        query = query.where(attempts.c.job_name == job_name, attempts.c.state != str(TrialState.DONE))
        with self._database.reading() as connection:
            found: str | None = connection.scalar(query)
        if found is None:
            raise NotFound(f"no job {job_name} is in flight")
        return found

    def record(self, deed: Deed) -> None:
        """Add to the audit log; now and then, what is too old or too much goes."""
        with self._database.writing() as connection:
            row = {name: _short(value) if isinstance(value, str) else value for name, value in asdict(deed).items()}
            id = connection.execute(insert(audit).returning(audit.c.id), row).scalar_one()
            if id % PRUNE_EVERY == 0:
                _prune(connection, deed.at, id)

    def audit(self, *, after: int = 0, limit: int) -> list[Entry]:
        """The first entries with ids above `after`, in order."""
        query = select(audit).where(audit.c.id > after).order_by(audit.c.id).limit(limit)
        with self._database.reading() as connection:
            return [_entry(row) for row in connection.execute(query)]


def _prune(connection: Connection, now: float, newest: int) -> None:
    connection.execute(delete(audit).where(audit.c.at < now - KEPT_S))
    if (connection.scalar(select(func.min(audit.c.id))) or newest) <= newest - MOST_ENTRIES:
        connection.execute(delete(audit).where(audit.c.id <= newest - MOST_ENTRIES))


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def _row(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "sha256": token.sha256,
        "scopes": sorted(token.scopes),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
        **asdict(token.quotas),
    }


def _token(row: Row[Any]) -> Token:
    columns: Any = row._mapping
    return Token(
        name=row.name,
        sha256=row.sha256,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
        quotas=Quotas(**{name: columns[name] for name in _QUOTAS}),
    )


def _entry(row: Row[Any]) -> Entry:
    deed = Deed(
        at=row.at, token=row.token, action=row.action, object=row.object, outcome=row.outcome, detail=row.detail
    )
    return Entry(id=row.id, deed=deed)
