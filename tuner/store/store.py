"""The Store keeps campaigns, trials, attempts and events; every write changes rows and tells it in one transaction.

It is thread-safe, and several processes may use one database. Where a method says what it raises, nothing was
written; StoreUnavailable may come from each. A state is compared and changed within one transaction, so of two
writers that want the same move one gets IllegalMove. Times are epoch seconds, given by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import func, insert, select, update

from meshtune.runners.outcome import Outcome
from meshtune.tuner.access.quotas import CLAIM_S, Demand, Limits, refusal
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Event, Lesson
from meshtune.tuner.campaign.proposal import Choice
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState
from meshtune.tuner.store import planning, queries, removal, schema, usage
from meshtune.tuner.store.access import Access
from meshtune.tuner.store.access_usage import require_room_for
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import AlreadyExists, IllegalMove, NotFound
from meshtune.tuner.store.event_payloads import done_data, move_data, submitted_data, tell
from meshtune.tuner.store.figures import Figures, read_figures
from meshtune.tuner.store.leases import NOBODY, Leases, hold_new
from meshtune.tuner.store.measurement_rows import measurement_row, step_rows
from meshtune.tuner.store.pages import Pages
from meshtune.tuner.store.rows import (
    campaign_row,
    lessons_document,
    node_columns,
    outcome_columns,
)
from meshtune.tuner.store.rules import advance, last_attempt, require_running
from meshtune.tuner.store.tables import attempts, campaigns, events, measurements, steps


class Store:
    """The only writer of truth. Made by `Store.open`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.access = Access(database)
        self.pages = Pages(database)
        self.leases = Leases(database)

    @classmethod
    def open(cls, url: str, clock: Callable[[], float] = time.time) -> Store:
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

    @property
    def name(self) -> str:
        """How messages call the database; it holds no password."""
        return self._database.name

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database; None for another one, and for one in memory."""
        return self._database.file

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

    # Campaigns

    def create_campaign(self, campaign: Campaign, *, holder: str = NOBODY) -> None:
        """Keep a new campaign; holder: the process that has it from the start. Raises AlreadyExists for an id that is
        taken, QuotaExceeded where its owner's token leaves no room for it."""
        with self._database.writing() as connection:
            if connection.scalar(select(campaigns.c.id).where(campaigns.c.id == campaign.id)) is not None:
                raise AlreadyExists(f"campaign {campaign.id} exists already")
            require_room_for(connection, campaign)
            connection.execute(insert(campaigns), campaign_row(campaign))
            data = {"name": campaign.spec.name, "state": str(campaign.state)}
            tell(connection, campaign.id, campaign.created_at, "campaign.created", data)
            if holder != NOBODY:
                hold_new(connection, campaign.id, holder)

    def campaign(self, id: str) -> Campaign:
        """Raises NotFound."""
        with self._database.reading() as connection:
            return queries.campaign(connection, id)

    def campaigns(
        self, *, limit: int, before: str | None = None, states: Collection[CampaignState] | None = None
    ) -> list[Campaign]:
        """A page, newest first. before: the last campaign of the page before; NotFound when there is none such."""
        with self._database.reading() as connection:
            return queries.campaign_page(connection, limit, before, states)

    def campaigns_on(self, device: str, workload: str, *, limit: int) -> list[Campaign]:
        """The newest campaigns on this device with this kind of workload, newest first; among them, one whose spec
        this meshtune does not read is left out."""
        with self._database.reading() as connection:
            return queries.campaigns_on(connection, device, workload, limit)

    def readable_campaigns(self, *, limit: int) -> list[Campaign]:
        """The newest campaigns, newest first; among them, one whose spec this meshtune does not read is left out."""
        with self._database.reading() as connection:
            return queries.readable_campaigns(connection, limit)

    def move_campaign(self, id: str, to: CampaignState, *, reason: str, now: float) -> Campaign:
        """The campaign in its new state. Raises NotFound, or IllegalMove by `CampaignState.may_become`."""
        with self._database.writing() as connection:
            state = queries.campaign_state(connection, id)
            if not state.may_become(to):
                raise IllegalMove(f"campaign {id}", state, to)
            values = {"state": str(to), "reason": reason, "updated_at": now}
            if to is CampaignState.RUNNING:
                values["running_since"] = now
            connection.execute(update(campaigns).where(campaigns.c.id == id).values(values))
            tell(connection, id, now, f"campaign.{to}", {"state": str(to), "reason": reason})
            return queries.campaign(connection, id)

    def add_elapsed(self, id: str, seconds: float, now: float) -> None:
        """Add to the time that the campaign was worked on; not worth an event. Raises NotFound."""
        with self._database.writing() as connection:
            values = {"elapsed_s": campaigns.c.elapsed_s + seconds, "updated_at": now}
            if connection.execute(update(campaigns).where(campaigns.c.id == id).values(values)).rowcount == 0:
                raise NotFound(f"there is no campaign {id}")

    def end_search(self, id: str, reason: str, *, chance_left: float | None = None, now: float) -> Campaign:
        """The campaign with its search ended for this reason; where it has ended already, the first reason stays.

        chance_left: as in `plan_trials`. Raises NotFound, and IllegalMove when the campaign is not RUNNING.
        """
        with self._database.writing() as connection:
            campaign = queries.campaign(connection, id)
            if campaign.search_ended:
                return campaign
            require_running(connection, id, f"the search of campaign {id}", "under way", "ended")
            values = {"search_ended": reason, "updated_at": now}
            if chance_left is not None:
                values["chance_left"] = chance_left
            connection.execute(update(campaigns).where(campaigns.c.id == id).values(values))
            campaign = queries.campaign(connection, id)
            data = {"reason": reason, "chance_left": campaign.chance_left}
            tell(connection, id, now, "search.ended", data)
            return campaign

    def remove_campaign(self, id: str) -> None:
        """Forget a campaign with all its trials and events. Raises NotFound, and IllegalMove when it is not over."""
        with self._database.writing() as connection:
            removal.remove_campaign(connection, id)

    def keep_lessons(self, id: str, lessons: Sequence[Lesson], *, now: float) -> None:
        """Keep what the campaign's search learns from; the same as before is nothing new. Raises NotFound."""
        with self._database.writing() as connection:
            if queries.campaign(connection, id).lessons == tuple(lessons):
                return
            document = lessons_document(lessons)
            connection.execute(update(campaigns).where(campaigns.c.id == id).values(lessons=document, updated_at=now))
            tell(connection, id, now, "campaign.learns", {"lessons": document})

    # Trials

    def plan_trials(
        self,
        campaign_id: str,
        choices: Sequence[Choice],
        origin: Origin,
        *,
        chance_left: float | None = None,
        now: float,
    ) -> list[Trial]:
        """The new trials, numbered on from the last one, each with a PLANNED first attempt: all of them or none.

        chance_left: the search's word on what it did not choose; it is kept even where nothing is chosen. None: what
        it said before stays. Raises NotFound, IllegalMove when the campaign is not RUNNING, AlreadyExists for a plan
        that comes twice or that the campaign has; a confirmation may repeat it once.
        """
        with self._database.writing() as connection:
            return planning.plan_trials(connection, campaign_id, choices, origin, chance_left, now)

    def plan_attempt(self, campaign_id: str, number: int, *, now: float) -> Trial:
        """The trial with one more attempt, PLANNED. Raises NotFound, or IllegalMove when the campaign is not RUNNING
        or the last attempt is not DONE with a retryable verdict."""
        with self._database.writing() as connection:
            return planning.plan_attempt(connection, campaign_id, number, now)

    def mark_submitted(
        self, campaign_id: str, number: int, job_id: str, *, avoid: Sequence[str] = (), now: float
    ) -> None:
        """The trial's last attempt is SUBMITTED as `job_id`. Raises NotFound, IllegalMove."""
        with self._database.writing() as connection:
            values = {"job_id": job_id, "submitted_at": now, **node_columns(avoid=avoid)}
            moved = advance(connection, campaign_id, number, TrialState.SUBMITTED, values)
            tell(connection, campaign_id, now, "trial.submitted", submitted_data(number, moved))

    def mark_running(
        self, campaign_id: str, number: int, *, started_at: float, nodes: Sequence[str] = (), now: float
    ) -> None:
        """The trial's last attempt is RUNNING since `started_at`. Raises NotFound, IllegalMove."""
        with self._database.writing() as connection:
            values = {"started_at": started_at, **node_columns(nodes=nodes)}
            moved = advance(connection, campaign_id, number, TrialState.RUNNING, values)
            tell(connection, campaign_id, now, "trial.running", move_data(number, moved))

    def finish(
        self,
        campaign_id: str,
        number: int,
        outcome: Outcome,
        *,
        started_at: float | None,
        finished_at: float,
        nodes: Sequence[str] = (),
        failed_nodes: Sequence[str] = (),
        now: float,
    ) -> None:
        """The trial's last attempt is DONE with `outcome`, every step of its measurement kept.

        started_at None, no nodes: unknown to the caller; what `mark_running` said stays. Raises NotFound, and
        IllegalMove for an attempt that is DONE already.
        """
        with self._database.writing() as connection:
            values = {
                **outcome_columns(outcome),
                **node_columns(nodes=nodes, failed_nodes=failed_nodes),
                "finished_at": finished_at,
            }
            if started_at is not None:
                values["started_at"] = started_at
            moved = advance(connection, campaign_id, number, TrialState.DONE, values)
            if outcome.measurement is not None:
                connection.execute(insert(measurements), measurement_row(outcome.measurement, moved.id))
                connection.execute(insert(steps), step_rows(outcome.measurement, moved.id))
            tell(connection, campaign_id, now, "trial.done", done_data(number, moved, outcome))

    def trial(self, campaign_id: str, number: int) -> Trial:
        """Raises NotFound."""
        with self._database.reading() as connection:
            return queries.trial(connection, campaign_id, number)

    def trials(self, campaign_id: str, *, after: int = -1, limit: int | None = None) -> list[Trial]:
        """The trials with numbers above `after`, complete, in the order of their numbers; none for no campaign."""
        with self._database.reading() as connection:
            return queries.trial_range(connection, campaign_id, first=after + 1, limit=limit)

    def verdict_counts(self, campaign_ids: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """For each of the campaigns: trials by the verdict of their last attempt, by its state while it has none."""
        with self._database.reading() as connection:
            return queries.verdict_counts(connection, campaign_ids)

    # Quotas and nodes

    def claim(self, campaign_id: str, number: int, limits: Limits, *, now: float) -> bool:
        """Whether the trial's planned attempt may be sent now: one decision for all processes, so that no two take the
        last place. It counts as sent for CLAIM_S from now, and may be claimed again. Raises NotFound."""
        with self._database.writing() as connection:
            last = last_attempt(connection, campaign_id, number)
            held = last.claimed_at is not None and now - last.claimed_at < CLAIM_S
            if not held and refusal(limits, usage.demands(connection, campaign_id, now), campaign_id):
                return False
            connection.execute(update(attempts).where(attempts.c.id == last.id).values(claimed_at=now))
            return True

    def demands(self, asking: str, now: float) -> list[Demand]:
        """What every campaign has in flight and wants. asking: the one that is worked on just now."""
        with self._database.reading() as connection:
            return usage.demands(connection, asking, now)

    def spent_device_s(self, since: float, now: float) -> float:
        """Devices times the seconds that jobs of all campaigns have held them since then."""
        with self._database.reading() as connection:
            return usage.spent_device_s(connection, since, now)

    def node_faults(self, device: str, since: float) -> Mapping[str, int]:
        """How often each node failed under jobs of any campaign on this device that ended since then."""
        with self._database.reading() as connection:
            return usage.node_faults(connection, device, since)

    # Events

    def newest_event(self, campaign_id: str) -> int:
        """The id of the campaign's last event, 0 for none."""
        with self._database.reading() as connection:
            newest = select(func.max(events.c.id)).where(events.c.campaign_id == campaign_id)
            return connection.scalar(newest) or 0

    def events(self, campaign_id: str | None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The first events with ids above `after`, of one campaign or (None) of all, in the order of commits.

        No event ever appears with an id below one that was seen before.
        """
        with self._database.reading() as connection:
            return queries.events_after(connection, campaign_id, after, limit)

    def last_event_id(self) -> int:
        """The newest event's id; 0 before the first."""
        with self._database.reading() as connection:
            return connection.scalar(select(func.max(events.c.id))) or 0

    def figures(self, now: float) -> Figures:
        """Campaigns and trials counted over the whole database, and the device time that they have used."""
        with self._database.reading() as connection:
            return read_figures(connection, now)
