"""Tokens, the audit log and idempotency keys, in the store's database; the same promises as `Store` makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, select, update

from meshtune.tuner.access.tokens import AuditRecord, Quotas, Rights, Scope, Token, Used
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import AlreadyExists, NotFound, Unreadable, reading_row
from meshtune.tuner.store.tables import attempts, audit, holders, idempotency, tokens, trials
from meshtune.tuner.store.usage import owner_usage, token_quotas

# A record goes when it is older, and the oldest go when there are more.
KEPT_S = 400 * 86400.0
MAX_RECORDS = 1_000_000
# Callers from outside decide how long the texts are; a line of a log stays one.
MAX_CHARACTERS = 500
# How many records are written before old ones are looked for.
PRUNE_EVERY = 1000
# For so long the answer to a request with an idempotency key is kept.
KEY_KEPT_S = 86400.0
# The idempotency key, with its caller, of the request that is acting in this context.
_acting: ContextVar[tuple[str, str] | None] = ContextVar("idempotency key", default=None)
_QUOTAS = tuple(field.name for field in fields(Quotas))
# Lists in JSON columns.
_SETS = ("scopes", "projects")


class Claim(StrEnum):
    """The state of a request's idempotency key, where there is no answer to give."""

    # Act, and keep the answer.
    FIRST = "first"
    # The key was another request's.
    REUSED = "reused"


@dataclass(frozen=True, slots=True)
class Busy:
    """The first request is being answered by this process, as far as the database knows."""

    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """The answer to the first request of a key."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Access:
    """Who may do what, who did what, and what each used. `Store.access`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.keys = Keys(database)

    def create(self, token: Token) -> None:
        """Keep a new token; one of that name that opens nothing any more is replaced. Raises AlreadyExists."""
        with self._database.writing() as connection:
            same = tokens.c.name == token.name
            if any(not known.refusal(token.created_at) for known in read_tokens(connection, [], same)):
                raise AlreadyExists(f"there is a token {token.name} already; revoke it first")
            connection.execute(delete(tokens).where(same))
            row_values = asdict(token) | asdict(token.quotas) | {name: sorted(getattr(token, name)) for name in _SETS}
            del row_values["quotas"]
            connection.execute(insert(tokens), row_values)

    def revoke(self, name: str, now: float) -> None:
        """Let the token open nothing from now on; one that was revoked before stays so. Raises NotFound."""
        with self._database.writing() as connection:
            gone = update(tokens).where(tokens.c.name == name, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
            connection.execute(gone)
            if connection.scalar(select(tokens.c.name).where(tokens.c.name == name)) is None:
                raise NotFound(f"there is no token {name}")

    def tokens(self, unreadable: list[str]) -> list[Token]:
        """All of them, those that open nothing any more included, as `read_tokens`."""
        with self._database.reading() as connection:
            return read_tokens(connection, unreadable)

    def by_digest(self, sha256: str) -> Token | None:
        with self._database.reading() as connection:
            return next(iter(read_tokens(connection, [], tokens.c.sha256 == sha256)), None)

    def used_at(self, sha256: str, now: float) -> None:
        with self._database.writing() as connection:
            connection.execute(update(tokens).where(tokens.c.sha256 == sha256).values(last_used_at=now))

    def used(self, owner: str, now: float) -> Used:
        """What the campaigns of this owner use, as its quotas count it."""
        with self._database.reading() as connection:
            return owner_usage(connection, owner, now)

    def rights(self, owner: str) -> Rights:
        """Those of the token of that name, whether it opens anything still or not."""
        with self._database.reading() as connection:
            return next(iter(read_tokens(connection, [], tokens.c.name == owner)), Rights(name=owner))

    def quotas(self, owner: str) -> Quotas:
        """Those of the token of that name; none where there is no such token."""
        with self._database.reading() as connection:
            return token_quotas(connection, owner)

    def campaign_in_flight(self, job_name: str) -> str:
        """The campaign whose attempt has this job's name. Raises NotFound where there is none, or it is over."""
        query = select(trials.c.campaign_id).join(attempts, attempts.c.trial_id == trials.c.id)
        query = query.where(attempts.c.job_name == job_name, attempts.c.state != str(TrialState.DONE))
        with self._database.reading() as connection:
            campaign_id: str | None = connection.scalar(query)
        if campaign_id is None:
            raise NotFound(f"no job {job_name} is in flight")
        return campaign_id

    def record(self, record: AuditRecord) -> None:
        """Add to the audit log; now and then, what is too old or too much goes."""
        values = {name: _short(value) if isinstance(value, str) else value for name, value in asdict(record).items()}
        del values["id"]
        with self._database.writing() as connection:
            id = connection.execute(insert(audit).returning(audit.c.id), values).scalar_one()
            if id % PRUNE_EVERY == 0:
                connection.execute(delete(audit).where(audit.c.at < record.at - KEPT_S))
                if (connection.scalar(select(func.min(audit.c.id))) or id) <= id - MAX_RECORDS:
                    connection.execute(delete(audit).where(audit.c.id <= id - MAX_RECORDS))

    def audit(self, *, after: int = 0, limit: int) -> list[AuditRecord]:
        """The first records with ids above `after`, in order."""
        query = select(audit).where(audit.c.id > after).order_by(audit.c.id).limit(limit)
        with self._database.reading() as connection:
            return [AuditRecord(**row._mapping) for row in connection.execute(query)]


class Keys:
    """Idempotency keys: a request with a key acts once, and its answer is kept for whoever sends it again.

    What a request does to a campaign is noted with its key in the same transaction (`act_once`). A process that dies
    before it has kept an answer thus leaves no doubt: the next attempt acts, or finds what was done.

    caller: the digest of the caller's token, so that nobody sees the answers to another's requests.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(
        self, caller: str, key: str, fingerprint: str, holder: str, now: float, *, busy: bool = False
    ) -> Claim | Busy | KeptAnswer:
        """The kept answer, or what to do with the request; of two that ask at once, one is FIRST.

        fingerprint: a digest of all that it asks for. holder: the process that asks, as leases know it; busy: it is
        answering another request with this key. An earlier claim counts while its process lives. Keys that were made a
        day ago are forgotten.
        """
        with self._database.writing() as connection:
            connection.execute(delete(idempotency).where(idempotency.c.at < now - KEY_KEPT_S))
            row = connection.execute(select(idempotency).where(_is(caller, key))).one_or_none()
            if row is None:
                if busy:
                    return Busy(holder)
                made = {"caller": caller, "key": key, "fingerprint": fingerprint, "at": now, "holder": holder}
                connection.execute(insert(idempotency), made)
                return Claim.FIRST
            if row.fingerprint != fingerprint:
                return Claim.REUSED
            if row.status is not None:
                return KeptAnswer(status=row.status, headers=row.headers, body=row.body)
            alive = holders.c.expires_at > self._database.now(connection)
            other = select(holders.c.name).where(holders.c.name == row.holder, holders.c.name != holder, alive)
            if busy or connection.scalar(other) is not None:
                return Busy(row.holder)
            connection.execute(update(idempotency).where(_is(caller, key)).values(holder=holder))
            return Claim.FIRST

    @contextmanager
    def acting(self, caller: str, key: str) -> Iterator[None]:
        """What this context does to a campaign meanwhile is done once for this key, which was claimed."""
        token = _acting.set((caller, key))
        try:
            yield
        finally:
            _acting.reset(token)

    def keep(self, caller: str, key: str, answer: KeptAnswer) -> None:
        values = {"status": answer.status, "headers": dict(answer.headers), "body": answer.body}
        with self._database.writing() as connection:
            connection.execute(update(idempotency).where(_is(caller, key)).values(values))

    def forget(self, caller: str, key: str) -> None:
        """The first request did nothing, unless it is noted that it did: the next one may."""
        with self._database.writing() as connection:
            connection.execute(delete(idempotency).where(_is(caller, key), idempotency.c.campaign_id.is_(None)))


def act_once(connection: Connection, campaign_id: str) -> str | None:
    """Note that the request which is acting (`Keys.acting`) makes or moves this campaign in this transaction. Where an
    earlier attempt has done so, nothing is noted, and the campaign of that attempt is returned; else None."""
    request = _acting.get()
    if request is None:
        return None
    earlier: str | None = connection.scalar(select(idempotency.c.campaign_id).where(_is(*request)))
    if earlier is None:
        connection.execute(update(idempotency).where(_is(*request)).values(campaign_id=campaign_id))
    return earlier


def _is(caller: str, key: str) -> ColumnElement[bool]:
    return and_(idempotency.c.caller == caller, idempotency.c.key == key)


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 3] + "..."


def read_tokens(connection: Connection, unreadable: list[str], *where: ColumnElement[bool]) -> list[Token]:
    """By name, without the unreadable, which open nothing; of each of them the list takes a sentence."""
    found = []
    for row in connection.execute(select(tokens).where(*where).order_by(tokens.c.name)):
        try:
            found.append(_token(row))
        except Unreadable as error:
            unreadable.append(str(error))
    return found


def _token(row: Row[Any]) -> Token:
    """Raises Unreadable."""
    with reading_row(f"token {row.name}", "`meshtune token revoke` ends it"):
        columns = dict(row._mapping)
        quotas = Quotas(**{name: columns.pop(name) for name in _QUOTAS})
        sets = {"scopes": frozenset(map(Scope, row.scopes)), "projects": frozenset(row.projects)}
        return Token(**{**columns, **sets}, quotas=quotas)
