"""Idempotency keys: a request with a key acts once, and its answer is kept for whoever sends it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import and_, delete, insert, select, update

from meshtune.tuner.store.database import Database
from meshtune.tuner.store.tables import idempotency

KEPT_S = 86400.0
# A request that was not answered for so long never will be: its process is gone.
CUT_OFF_S = 300.0


class Claim(StrEnum):
    """What the key says to a request. FIRST: act, and give the answer. REUSED: the key was another request's. BUSY:
    the first is under way. UNCLEAR: the first was cut off before its answer was kept."""

    FIRST = "first"
    REUSED = "reused"
    BUSY = "busy"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered to the first request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Keys:
    """The keys of all callers. A caller is the digest of its token: nobody sees the answers to another's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, caller: str, key: str, fingerprint: str, now: float) -> Claim | Answer:
        """What to do with a request; of two that ask at once, one is FIRST. fingerprint: a digest of all that it asks
        for. Keys that were made a day ago are forgotten."""
        one = and_(idempotency.c.caller == caller, idempotency.c.key == key)
        with self._database.writing() as connection:
            connection.execute(delete(idempotency).where(idempotency.c.at < now - KEPT_S))
            row = connection.execute(select(idempotency).where(one)).one_or_none()
            if row is None:
                made = {"caller": caller, "key": key, "fingerprint": fingerprint, "at": now}
                connection.execute(insert(idempotency), made)
                return Claim.FIRST
            if row.fingerprint != fingerprint:
                return Claim.REUSED
            if row.status is None:
                return Claim.BUSY if now - row.at < CUT_OFF_S else Claim.UNCLEAR
            return Answer(status=row.status, headers=row.headers, body=row.body)

    def keep(self, caller: str, key: str, answer: Answer) -> None:
        """Keep the answer to the first request."""
        one = and_(idempotency.c.caller == caller, idempotency.c.key == key)
        values = {"status": answer.status, "headers": dict(answer.headers), "body": answer.body}
        with self._database.writing() as connection:
            connection.execute(update(idempotency).where(one).values(values))

    def forget(self, caller: str, key: str) -> None:
        """The first request did nothing: the next one may."""
        with self._database.writing() as connection:
            one = and_(idempotency.c.caller == caller, idempotency.c.key == key)
            connection.execute(delete(idempotency).where(one))
