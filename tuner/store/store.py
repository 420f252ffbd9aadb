"""The Store keeps campaigns, trials, attempts and events; every write changes rows and adds its event in one
transaction.

It is thread-safe, and several processes may use one database. Where a method says what it raises, nothing was
written; StoreUnavailable may come from each. A state is compared and changed within one transaction, so of two
writers that want the same move one gets IllegalMove. Times are epoch seconds, given by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Self

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.store import maintenance, schema
from meshtune.tuner.store.access import Access
from meshtune.tuner.store.calibrations import Calibrations
from meshtune.tuner.store.campaigns import CampaignRows
from meshtune.tuner.store.changes import Changes
from meshtune.tuner.store.database import PRIVATE, Database
from meshtune.tuner.store.errors import StoreUnavailable
from meshtune.tuner.store.leases import Leases
from meshtune.tuner.store.pages import Pages
from meshtune.tuner.store.trials import TrialRows
from meshtune.tuner.store.usage import Usage


class Store(CampaignRows, TrialRows, Changes, Usage, AbstractContextManager["Store"]):
    """The only writer of truth. Made by `Store.open`. name, file, serving: see `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name, self.file = database.name, database.file
        self.access = Access(database)
        self.calibrations = Calibrations(database)
        self.pages = Pages(database)
        self.leases = Leases(database)
        self.serving = database.serving

    def recorded(self, campaign_id: str) -> tuple[Campaign, Sequence[Trial]]:
        """The campaign and all its trials. Raises NotFound."""
        return self.campaign(campaign_id), self.trials(campaign_id)

    @classmethod
    def open(cls, url: str, clock: Callable[[], float] = time.time, *, file_mode: int = PRIVATE) -> Self:
        """The store in the database at `url`, its schema brought up to date. An empty database becomes a store.

        url: sqlite:///file.db, sqlite:// (in memory, for tests) or postgresql://user:password@host/database; what
        the drivers read from a URL's query is passed on (`?timeout=60`: seconds to wait for another SQLite writer).
        clock: the machine's, for leases on SQLite. file_mode: of a SQLite file that is made.
        Raises StoreUnavailable: unreachable, read-only, no such folder, a bad URL, written by a newer meshtune, of an
        older schema and in use or without room for a copy, or a SQLite file that is not what it was (see `store.mark`).
        """
        database = Database(url, clock, file_mode=file_mode)
        try:
            database.require_same()
            maintenance.upgrade_schema(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        """Close all connections. A store that was closed must not be used; closing twice is nothing."""
        self._database.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def check(self) -> None:
        """Return when the database has kept a row and given it back; raise StoreUnavailable when not."""
        with self._database.writing() as connection:
            written = schema.write_probe(connection)
        with self._database.reading() as connection:
            read = schema.read_probe(connection)
        if read < written:  # another process may have written since
            raise StoreUnavailable(f"{self.name} does not give back what it was given", transient=True)
