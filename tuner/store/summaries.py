"""Summaries of campaigns that are over are kept, each with the newest event that it knows: for speed alone.

One that another meshtune made is made again, since its rules may have been others. Losing them all loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import version

from sqlalchemy import delete, insert, select

from meshtune.runners.documents import plain, read_value
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.campaign.summary import Summary
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.tables import campaigns, summaries

MADE_BY = version("meshtune")


class Summaries:
    """The same promises as `Store` makes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def kept(self, campaign_ids: Collection[str]) -> dict[str, tuple[int, Summary]]:
        """Those that are kept of these campaigns: by id, with the newest event that each knows."""
        query = select(summaries).where(summaries.c.campaign_id.in_(list(campaign_ids)), summaries.c.made_by == MADE_BY)
        found: dict[str, tuple[int, Summary]] = {}
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            try:
                found[row.campaign_id] = (row.event, read_value(Summary, row.document))
            except InvalidValue:  # its form has changed, or a number was infinite, which JSON cannot say
                continue
        return found

    def keep(self, made: Mapping[str, tuple[int, Summary]]) -> None:
        """Keep these in place of earlier ones; what is of a campaign that is gone is left out."""
        with self._database.writing() as connection:
            there = set(connection.scalars(select(campaigns.c.id).where(campaigns.c.id.in_(list(made)))))
            connection.execute(delete(summaries).where(summaries.c.campaign_id.in_(there)))
            rows = [
                {"campaign_id": id, "event": event, "made_by": MADE_BY, "document": plain(summary)}
                for id, (event, summary) in made.items()
                if id in there
            ]
            if rows:
                connection.execute(insert(summaries), rows)
