"""Answers about campaigns that are over are kept as they are sent, each with the newest event that it knows.

For speed alone: what another meshtune made is made again, and losing them all loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, tuple_

from meshtune.tuner.store.database import Database
from meshtune.tuner.store.summaries import MADE_BY
from meshtune.tuner.store.tables import answers, campaigns


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """event: the campaign's newest one when it was made. packed: the body by gzip; etag: of the body."""

    event: int
    etag: str
    packed: bytes


class Answers:
    """The same promises as `Store` makes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def kept(self, campaign_id: str, question: str) -> KeptAnswer | None:
        """What is kept of a campaign under this name; None where there is nothing, or of another meshtune."""
        query = select(answers.c.event, answers.c.etag, answers.c.packed).where(
            answers.c.campaign_id == campaign_id, answers.c.question == question, answers.c.made_by == MADE_BY
        )
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else KeptAnswer(row.event, row.etag, row.packed)

    def keep(self, made: Mapping[tuple[str, str], KeptAnswer]) -> None:
        """Keep these, by campaign and question, in place of earlier ones; what is of a campaign that is gone is left
        out."""
        with self._database.writing() as connection:
            named = select(campaigns.c.id).where(campaigns.c.id.in_({id for id, _ in made}))
            there = set(connection.scalars(named))
            rows = [
                {
                    "campaign_id": id,
                    "question": question,
                    "event": answer.event,
                    "made_by": MADE_BY,
                    "etag": answer.etag,
                    "packed": answer.packed,
                }
                for (id, question), answer in made.items()
                if id in there
            ]
            if rows:
                keys = [(row["campaign_id"], row["question"]) for row in rows]
                connection.execute(delete(answers).where(tuple_(answers.c.campaign_id, answers.c.question).in_(keys)))
                connection.execute(insert(answers), rows)
