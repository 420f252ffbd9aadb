"""The Store keeps campaigns, trials, attempts and events; every write changes rows and adds its event in one
transaction.

It is thread-safe, and several processes may use one database. Where a method says what it raises, nothing was
written; StoreUnavailable may come from each. A state is compared and changed within one transaction, so of two
writers that want the same move one gets IllegalMove. Times are epoch seconds, given by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from meshtune.tuner.access.quotas import Demand
from meshtune.tuner.campaign.campaign import Event
from meshtune.tuner.store import schema, usage
from meshtune.tuner.store.access import Access
from meshtune.tuner.store.campaigns import Campaigns
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import NotFound
from meshtune.tuner.store.events import events_after, newest_event
from meshtune.tuner.store.leases import Leases
from meshtune.tuner.store.pages import Pages
from meshtune.tuner.store.trials import Trials


class Store(Campaigns, Trials):
    """The only writer of truth. Made by `Store.open`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = database.name
        self.access = Access(database)
        self.pages = Pages(database)
        self.leases = Leases(database)

    @classmethod
    def open(cls, url: str, clock: Callable[[], float] = time.time) -> Self:
        """The store in the database at `url`, its schema brought up to date. An empty database becomes a store.

        url: sqlite:///file.db, sqlite:// (in memory, for tests) or postgresql://user:password@host/database; what
        the drivers read from a URL's query is passed on (`?timeout=60`: seconds to wait for another SQLite writer).
        clock: the machine's, for leases on SQLite.
        Raises StoreUnavailable: unreachable, read-only, no such folder, a bad URL, or written by a newer meshtune.
        """
        database = Database(url, clock)
        try:
            with database.upgrading() as connection:
                schema.upgrade(connection, database.name)
                schema.probe(connection)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def serving(self) -> AbstractContextManager[None]:
        """As `Database.serving`: be the one process that serves a SQLite file."""
        return self._database.serving()

    def close(self) -> None:
        """Close all connections. A store that was closed must not be used; closing twice is nothing."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self) -> None:
        """Return when the database answers and takes writes, raise StoreUnavailable when not."""
        with self._database.writing() as connection:
            schema.probe(connection)

    def events(self, campaign_id: str | None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The first events with ids above `after`, of one campaign or (None) of all, in the order of commits.

        No event ever appears with an id below one that was seen before.
        """
        with self._database.reading() as connection:
            return events_after(connection, campaign_id, after, limit)

    def newest_event(self, campaign_id: str | None = None, kinds: Collection[str] = ()) -> int:
        """The id of the newest event, of one campaign (while it stays, no trial has changed) or of all; 0 before the
        first. kinds: of these alone, if any; "campaign.created" is one of them. Raises NotFound."""
        with self._database.reading() as connection:
            newest = newest_event(connection, campaign_id, kinds)
        if campaign_id is not None and not newest:
            raise NotFound(f"there is no campaign {campaign_id}")
        return newest

    def demands(self, asking: str, now: float) -> list[Demand]:
        """The jobs that every campaign has in flight and wants. asking: the one that is worked on just now."""
        with self._database.reading() as connection:
            return usage.read_demands(connection, asking, now)

    def spent_device_s(self, since: float, now: float, owner: str | None = None) -> float:
        """Devices times the seconds that jobs have held them since then: of all campaigns, or of one owner's."""
        with self._database.reading() as connection:
            return usage.spent_device_s(connection, since, now, owner)

    def node_faults(self, device: str, since: float) -> Mapping[str, int]:
        """How often each node failed under jobs of any campaign on this device that ended since then."""
        with self._database.reading() as connection:
            return usage.node_faults(connection, device, since)

    def figures(self, now: float) -> usage.Figures:
        """Campaigns and trials counted over the whole database, and the device time that they have used."""
        with self._database.reading() as connection:
            return usage.read_figures(connection, now)
