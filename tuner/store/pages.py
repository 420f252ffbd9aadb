"""Pages of campaigns and trials, filtered and sorted by the database: what lists show, without any step.

The last attempt of a trial is the one with the highest number. Filters and orders are columns or sums of columns; the
work of a page grows with the trials of its one campaign, not with those of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Double, Row, Select, and_, case, cast, func, or_, select, tuple_

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import FAILED
from meshtune.search_spaces.plan import PLAN_FIELDS
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.listing import CampaignKey, CampaignsWanted, News, Stamp, TrialKey, TrialsWanted
from meshtune.tuner.campaign.summary import Score, Tally
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState
from meshtune.tuner.campaign.trial_brief import Brief
from meshtune.tuner.store.campaigns import campaign_state
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import NotFound
from meshtune.tuner.store.page_rows import brief_of, measured_trial_of, tally_of
from meshtune.tuner.store.rows import campaign_of
from meshtune.tuner.store.tables import attempts, campaigns, events, measurements, trials
from meshtune.tuner.store.trials import trials_numbered

_newer = attempts.alias("newer")
_held = attempts.alias("held")
_LAST = attempts.c.number == (
    select(func.max(_newer.c.number)).where(_newer.c.trial_id == trials.c.id).scalar_subquery()
)
_RAN_S = _held.c.finished_at - _held.c.started_at
# As `Attempt.running_s`: 0 for a job that never started or still runs.
_HELD_S = (
    select(func.coalesce(func.sum(case((_RAN_S > 0, _RAN_S), else_=0.0)), 0.0))
    .where(_held.c.trial_id == trials.c.id)
    .scalar_subquery()
)
_NEWEST = select(func.max(events.c.id)).where(events.c.campaign_id == campaigns.c.id).scalar_subquery()
_ENDS = [f"campaign.{state}" for state in CampaignState if state.final]
_ACTIVE = [str(state) for state in CampaignState if state.active]
_CAMPAIGN_KEYS: Mapping[CampaignKey, ColumnElement[Any]] = {
    CampaignKey.CREATED_AT: campaigns.c.created_at,
    CampaignKey.UPDATED_AT: campaigns.c.updated_at,
    CampaignKey.NAME: campaigns.c.name,
    CampaignKey.STATE: campaigns.c.state,
    CampaignKey.LEGAL: campaigns.c.legal,
}
_TRIAL_KEYS: Mapping[TrialKey, ColumnElement[Any]] = {
    TrialKey.NUMBER: trials.c.number,
    TrialKey.STEP_TIME: measurements.c.median_step_time_s,
    TrialKey.TOKENS_PER_S_PER_DEVICE: (
        cast(measurements.c.tokens_per_step, Double) / measurements.c.median_step_time_s / measurements.c.devices
    ),
    TrialKey.PEAK_MEMORY: measurements.c.most_memory_bytes,
    TrialKey.DEVICE_SECONDS: _HELD_S,
}
# `page_rows` finds columns by their places in these.
_NAMED = (trials.c.number, trials.c.origin, trials.c.plan_key)
_TRIAL = (*_NAMED, *(trials.c[name] for name in PLAN_FIELDS))
_DIGEST = (
    measurements.c.attempt_id.label("measured"),
    measurements.c.tokens_per_step,
    measurements.c.devices,
    measurements.c.model_flops_per_token,
    measurements.c.peak_flops_per_device,
    measurements.c.median_step_time_s,
    measurements.c.step_time_low_s,
    measurements.c.step_time_high_s,
    measurements.c.most_memory_bytes,
    measurements.c.most_held_bytes,
)
# As the fields of `Score`; the peak as `fullest_rank_bytes` says.
_SCORE = (
    measurements.c.tokens_per_step,
    measurements.c.devices,
    measurements.c.model_flops_per_token,
    measurements.c.median_step_time_s,
    func.nullif(func.coalesce(measurements.c.most_held_bytes, measurements.c.most_memory_bytes), 0),
)
_LAST_ATTEMPT = (
    attempts.c.number.label("attempt"),
    attempts.c.job_name,
    attempts.c.state,
    attempts.c.verdict,
    attempts.c.cause,
    attempts.c.reason,
    attempts.c.nodes,
    attempts.c.planned_at,
    attempts.c.submitted_at,
    attempts.c.started_at,
    attempts.c.finished_at,
)
# What rankings are made of.
_COUNTS = or_(
    measurements.c.attempt_id.is_not(None),
    and_(trials.c.origin == str(Origin.CONFIRMATION), attempts.c.state == str(TrialState.DONE)),
)


class Pages:
    """Reading for lists; the same promises as `Store` makes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def news(self, after: int | None) -> News:
        """What happened after this event; None: nothing is asked of what was before."""
        created = func.sum(case((events.c.kind == "campaign.created", 1), else_=0))
        newest_of = func.max(events.c.id).label("event")
        changed: Select[Any] = select(events.c.campaign_id, newest_of, created.label("created"))
        count = select(func.count()).select_from(campaigns).scalar_subquery()
        worked = select(func.sum(campaigns.c.updated_at)).where(campaigns.c.state.in_(_ACTIVE)).scalar_subquery()
        newest = select(func.max(events.c.id)).scalar_subquery()
        with self._database.reading() as connection:
            now = select(newest.label("event"), count.label("campaigns"), worked.label("worked"))
            found = connection.execute(now).one()
            rows: Sequence[Row[Any]] = []
            if after is not None and (found.event or 0) > after:
                rows = connection.execute(changed.where(events.c.id > after).group_by(events.c.campaign_id)).all()
        return News(
            event=found.event or 0,
            changed={row.campaign_id: row.event for row in rows},
            campaigns=found.campaigns,
            created=sum(row.created for row in rows),
            worked=found.worked or 0.0,
        )

    def newest_event(self, campaign_id: str, kinds: Collection[str] = ()) -> int:
        """The id of the campaign's newest event: while it stays, its trials have not changed. kinds: of these alone,
        where some are named; "campaign.created" is one of them. Raises NotFound."""
        query = select(events.c.id).where(events.c.campaign_id == campaign_id).order_by(events.c.id.desc()).limit(1)
        if kinds:
            query = query.where(events.c.kind.in_(kinds))
        with self._database.reading() as connection:
            newest: int | None = connection.scalar(query)
        if newest is None:
            raise NotFound(f"there is no campaign {campaign_id}")
        return newest

    def stamps(self, wanted: CampaignsWanted) -> list[Stamp]:
        """A page of campaigns, each by what tells whether one that was read before is still as it was."""
        value = _CAMPAIGN_KEYS[wanted.order.key]
        columns = (campaigns.c.id, campaigns.c.updated_at, value.label("value"), _NEWEST.label("event"))
        query = select(*columns).where(*_campaign_filters(wanted))
        if wanted.after is not None:
            place, mark = tuple_(value, campaigns.c.id), tuple_(wanted.after.value, wanted.after.name)
            query = query.where(place < mark if wanted.order.descending else place > mark)
        ends = (value, campaigns.c.id)
        query = query.order_by(*(end.desc() if wanted.order.descending else end for end in ends)).limit(wanted.limit)
        with self._database.reading() as connection:
            return [
                Stamp(id=row.id, event=row.event, updated_at=row.updated_at, value=row.value)
                for row in connection.execute(query)
            ]

    def over(self, campaign_id: str) -> bool:
        """Whether the campaign has come to its end. Raises NotFound."""
        with self._database.reading() as connection:
            return campaign_state(connection, campaign_id).final

    def ended(self, after: int) -> tuple[int, list[str]]:
        """The newest event, and which campaigns came to their ends after the event `after`, the first to end first."""
        ends = select(events.c.campaign_id).where(events.c.id > after, events.c.kind.in_(_ENDS)).order_by(events.c.id)
        with self._database.reading() as connection:
            newest: int | None = connection.scalar(select(func.max(events.c.id)))
            return newest or 0, list(connection.scalars(ends))

    def campaigns(self, ids: Collection[str]) -> dict[str, Campaign]:
        """Those of the campaigns that there are, by id. Raises StoreError for a spec that today's rules do not read."""
        query = select(campaigns).where(campaigns.c.id.in_(list(ids)))
        with self._database.reading() as connection:
            return {row.id: campaign_of(row) for row in connection.execute(query)}

    def briefs(self, campaign_id: str, wanted: TrialsWanted) -> list[Brief]:
        """A page of a campaign's trials; none for no campaign."""
        query = _trial_page(
            campaign_id, wanted, *_TRIAL, trials.c.expectation, *_LAST_ATTEMPT, *_DIGEST, _HELD_S.label("held_s")
        )
        with self._database.reading() as connection:
            return [brief_of(row) for row in connection.execute(query).all()]

    def trials(self, campaign_id: str, wanted: TrialsWanted) -> list[tuple[Trial, float | None]]:
        """A page of a campaign's trials, complete, each with the value that it is sorted by; none for no campaign."""
        with self._database.reading() as connection:
            found = connection.execute(_trial_page(campaign_id, wanted, trials.c.number)).all()
            whole = trials_numbered(connection, campaign_id, [row.number for row in found])
        return [(whole[row.number], row.value) for row in found]

    def numbered(self, campaign_id: str, numbers: Collection[int]) -> dict[int, Trial]:
        """Those of the campaign's trials that there are, complete, by number."""
        with self._database.reading() as connection:
            return trials_numbered(connection, campaign_id, numbers)

    def scores(self, campaign_id: str) -> list[Score]:
        """What a shortlist needs of the trials that were measured, and of the confirmations that were not, in the order
        of their numbers."""
        query = _of_last_attempts(select(*_NAMED, *_SCORE))
        query = query.where(trials.c.campaign_id == campaign_id, _COUNTS).order_by(trials.c.number)
        with self._database.reading() as connection:
            return [Score(*row) for row in connection.execute(query).all()]

    def measured(self, campaign_id: str, numbers: Collection[int] | None = None) -> list[Trial]:
        """What a ranking needs: the trials that were measured, with a Digest each, and the confirmations that were not,
        in the order of their numbers. Of the attempts there is the last one, without its log. numbers: of these trials
        alone, where some are named."""
        of_attempt = (*_LAST_ATTEMPT, *_DIGEST, measurements.c.first_losses)
        query = _of_last_attempts(select(*_TRIAL, trials.c.campaign_id, *of_attempt))
        query = query.where(trials.c.campaign_id == campaign_id, _COUNTS).order_by(trials.c.number)
        if numbers is not None:
            query = query.where(trials.c.number.in_(numbers))
        with self._database.reading() as connection:
            return [measured_trial_of(row) for row in connection.execute(query).all()]

    def tallies(self, campaign_id: str) -> list[Tally]:
        """The campaign's attempts, counted by how they ended; none for no campaign."""
        columns = (attempts.c.state, attempts.c.verdict, attempts.c.cause, _LAST.label("last"))
        ran_s = attempts.c.finished_at - attempts.c.started_at
        held_s = func.coalesce(func.sum(case((ran_s > 0, ran_s), else_=0.0)), 0.0)
        query = (
            select(*columns, func.count().label("alike"), held_s.label("held_s"))
            .select_from(trials)
            .join(attempts, attempts.c.trial_id == trials.c.id)
            .where(trials.c.campaign_id == campaign_id)
            .group_by(*columns[:3], "last")
        )
        with self._database.reading() as connection:
            return [tally_of(row) for row in connection.execute(query)]


def _campaign_filters(wanted: CampaignsWanted) -> list[ColumnElement[bool]]:
    filters: list[ColumnElement[bool]] = [
        column == value
        for column, value in (
            (campaigns.c.owner, wanted.owner),
            (campaigns.c.model, wanted.model),
            (campaigns.c.cluster, wanted.cluster),
        )
        if value is not None
    ]
    if wanted.states:
        filters.append(campaigns.c.state.in_([str(state) for state in wanted.states]))
    if wanted.name:
        filters.append(campaigns.c.name.icontains(wanted.name, autoescape=True))
    return filters


def _of_last_attempts(query: Select[Any]) -> Select[Any]:
    """A query over trials, with the last attempt of each and its measurement."""
    return (
        query.select_from(trials)
        .join(attempts, and_(attempts.c.trial_id == trials.c.id, _LAST))
        .outerjoin(measurements, measurements.c.attempt_id == attempts.c.id)
    )


def _trial_page(campaign_id: str, wanted: TrialsWanted, *columns: Any) -> Select[Any]:
    value = _TRIAL_KEYS[wanted.order.key]
    query = _of_last_attempts(select(*columns, value.label("value")))
    query = query.where(trials.c.campaign_id == campaign_id, *_trial_filters(wanted))
    if wanted.after is not None:
        query = query.where(_after(wanted, value))
    by_value = value.desc() if wanted.order.descending else value
    if wanted.order.key is TrialKey.NUMBER:
        return query.order_by(by_value).limit(wanted.limit)
    return query.order_by(value.is_(None), by_value, trials.c.number).limit(wanted.limit)


def _after(wanted: TrialsWanted, value: ColumnElement[Any]) -> ColumnElement[bool]:
    """What comes after the mark: larger (smaller) values, equal ones with larger numbers, and those without any."""
    assert wanted.after is not None
    mark, number = wanted.after.value, wanted.after.name
    if mark is None:
        return and_(value.is_(None), trials.c.number > number)
    further = value < mark if wanted.order.descending else value > mark
    if wanted.order.key is TrialKey.NUMBER:
        return further  # no two are equal; so said, an index finds the place
    return or_(further, and_(value == mark, trials.c.number > number), value.is_(None))


def _trial_filters(wanted: TrialsWanted) -> list[ColumnElement[bool]]:
    among: list[tuple[ColumnElement[Any], tuple[object, ...]]] = [
        (attempts.c.verdict, wanted.verdicts),
        (attempts.c.state, wanted.states),
        (trials.c.origin, wanted.origins),
        (trials.c.number, wanted.numbers),
        *((trials.c[name], values) for name, values in wanted.plan.items()),
    ]
    filters: list[ColumnElement[bool]] = [
        column.in_([_plain(value) for value in values]) for column, values in among if values
    ]
    return [*filters, _failed(wanted.failures)] if wanted.failures else filters


def _failed(causes: Collection[Cause]) -> ColumnElement[bool]:
    """As `Outcome.failure`: the cause that was named, else the verdict's own."""
    own = [str(verdict) for verdict, cause in FAILED.items() if cause in causes]
    unnamed = and_(attempts.c.cause.is_(None), attempts.c.verdict.in_(own))
    return or_(attempts.c.cause.in_([str(cause) for cause in causes]), unnamed)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, StrEnum) else value
