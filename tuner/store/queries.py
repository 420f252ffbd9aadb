"""Reading campaigns and trials: a constant number of queries, whatever the number of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, func, literal, null, select, tuple_

from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Event
from meshtune.tuner.campaign.trial import Attempt, Trial
from meshtune.tuner.store.errors import NotFound, StoreError
from meshtune.tuner.store.measurement_rows import LISTED, WHOLE, StepTimes, listed_measurement_of, measurement_of
from meshtune.tuner.store.rows import attempt_of, campaign_of, event_of, trial_of
from meshtune.tuner.store.tables import attempts, campaigns, events, measurements, steps, trials

# Made once, since making them takes longer than asking: each campaign that is driven asks at every look.
_EVENTS = select(events).where(events.c.id > bindparam("after")).order_by(events.c.id).limit(bindparam("most"))
_EVENTS_OF = _EVENTS.where(events.c.campaign_id == bindparam("of"))
# What a list of trials leaves out of attempts.
_UNLISTED = {"log_tail": literal(""), "partial": null()}
_LISTED_COLUMNS = (
    *(column for column in attempts.columns if column.name not in _UNLISTED),
    *(value.label(name) for name, value in _UNLISTED.items()),
    *LISTED,
)


def campaign(connection: Connection, id: str) -> Campaign:
    """Raises NotFound."""
    return campaign_of(_campaign_row(connection, id))


def campaign_state(connection: Connection, id: str) -> CampaignState:
    """Raises NotFound."""
    state = connection.scalar(select(campaigns.c.state).where(campaigns.c.id == id))
    if state is None:
        raise NotFound(f"there is no campaign {id}")
    return CampaignState(state)


def campaign_page(
    connection: Connection, limit: int, before: str | None, states: Collection[CampaignState] | None
) -> list[Campaign]:
    """Newest first, after the campaign `before` in that order. Raises NotFound for an unknown `before`."""
    page = select(campaigns).order_by(campaigns.c.created_at.desc(), campaigns.c.id.desc()).limit(limit)
    if before is not None:
        last = _campaign_row(connection, before)
        page = page.where(tuple_(campaigns.c.created_at, campaigns.c.id) < tuple_(last.created_at, last.id))
    if states is not None:
        page = page.where(campaigns.c.state.in_([str(state) for state in states]))
    return [campaign_of(row) for row in connection.execute(page)]


def campaigns_on(connection: Connection, device: str, workload: str, limit: int) -> list[Campaign]:
    """Newest first; of those, one with a spec that today's rules do not read is left out."""
    alike = (campaigns.c.device == device, campaigns.c.workload == workload)
    return readable_campaigns(connection, limit, *alike)


def readable_campaigns(connection: Connection, limit: int, *alike: ColumnElement[bool]) -> list[Campaign]:
    """Newest first; of those, one with a spec that today's rules do not read is left out."""
    query = select(campaigns).where(*alike).order_by(campaigns.c.created_at.desc(), campaigns.c.id.desc()).limit(limit)
    found: list[Campaign] = []
    for row in connection.execute(query):
        with suppress(StoreError):
            found.append(campaign_of(row))
    return found


def trial(connection: Connection, campaign_id: str, number: int) -> Trial:
    """Raises NotFound."""
    found = trial_range(connection, campaign_id, first=number, last=number)
    if not found:
        raise NotFound(f"campaign {campaign_id} has no trial {number}")
    return found[0]


def trial_range(
    connection: Connection, campaign_id: str, *, first: int = 0, last: int | None = None, limit: int | None = None
) -> list[Trial]:
    """The trials with numbers from `first` to `last`, at most `limit`, in the order of their numbers."""
    wanted = select(trials).where(trials.c.campaign_id == campaign_id, trials.c.number >= first)
    if last is not None:
        wanted = wanted.where(trials.c.number <= last)
    rows = connection.execute(wanted.order_by(trials.c.number).limit(limit)).all()
    if not rows:
        return []
    within = and_(trials.c.campaign_id == campaign_id, trials.c.number.between(rows[0].number, rows[-1].number))
    found = _whole_attempts(connection, within)
    return [trial_of(row, found[row.id]) for row in rows]


def trials_numbered(
    connection: Connection, campaign_id: str, numbers: Collection[int] | None, *, listed: bool = False
) -> dict[int, Trial]:
    """Those of the trials that there are, by number; of all where `numbers` is None. listed: as `_listed_attempts`."""
    within = trials.c.campaign_id == campaign_id
    if numbers is not None:
        within = and_(within, trials.c.number.in_(list(numbers)))
    rows = connection.execute(select(trials).where(within).order_by(trials.c.number)).all()
    found = _listed_attempts(connection, within) if listed else _whole_attempts(connection, within)
    return {row.number: trial_of(row, found[row.id]) for row in rows}


def _whole_attempts(connection: Connection, within: ColumnElement[bool]) -> Mapping[int, list[Attempt]]:
    """By trial. within: what finds the trials."""
    times = _step_times(
        connection,
        select(steps.c.attempt_id, steps.c.warmup, steps.c.seconds)
        .join(attempts, attempts.c.id == steps.c.attempt_id)
        .join(trials, trials.c.id == attempts.c.trial_id)
        .where(within)
        .order_by(steps.c.attempt_id, steps.c.number),
    )
    by_trial: defaultdict[int, list[Attempt]] = defaultdict(list)
    for row in connection.execute(_attempts((*attempts.columns, *WHOLE), within)):
        measurement = measurement_of(row, times[row.id]) if row.id in times else None
        by_trial[row.trial_id].append(attempt_of(row, measurement))
    return by_trial


def _listed_attempts(connection: Connection, within: ColumnElement[bool]) -> Mapping[int, list[Attempt]]:
    """As `_whole_attempts`, without logs, partial measurements and what `LISTED` leaves out of measurements."""
    by_trial: defaultdict[int, list[Attempt]] = defaultdict(list)
    for row in connection.execute(_attempts(_LISTED_COLUMNS, within)):
        by_trial[row.trial_id].append(attempt_of(row, listed_measurement_of(row)))
    return by_trial


def _attempts(columns: Sequence[ColumnElement[Any]], within: ColumnElement[bool]) -> Select[Any]:
    return (
        select(*columns)
        .join_from(attempts, trials, trials.c.id == attempts.c.trial_id)
        .outerjoin(measurements, measurements.c.attempt_id == attempts.c.id)
        .where(within)
        .order_by(attempts.c.trial_id, attempts.c.number)
    )


def events_after(connection: Connection, campaign_id: str | None, after: int, limit: int) -> list[Event]:
    """The first ones with ids above `after`, of one campaign or (None) of all."""
    values = {"after": after, "most": limit}
    if campaign_id is None:
        found = connection.execute(_EVENTS, values)
    else:
        found = connection.execute(_EVENTS_OF, {**values, "of": campaign_id})
    return [event_of(row) for row in found]


def next_trial_number(connection: Connection, campaign_id: str) -> int:
    highest = connection.scalar(select(func.max(trials.c.number)).where(trials.c.campaign_id == campaign_id))
    return 0 if highest is None else highest + 1


def verdict_counts(connection: Connection, campaign_ids: Collection[str]) -> Mapping[str, Mapping[str, int]]:
    """By campaign: how many trials ended (by their last attempt) in each verdict, or are in each state."""
    newer = attempts.alias()
    ended = func.coalesce(attempts.c.verdict, attempts.c.state)
    query = (
        select(trials.c.campaign_id, ended, func.count())
        .join(attempts, attempts.c.trial_id == trials.c.id)
        .outerjoin(newer, and_(newer.c.trial_id == trials.c.id, newer.c.number > attempts.c.number))
        .where(trials.c.campaign_id.in_(list(campaign_ids)), newer.c.id.is_(None))
        .group_by(trials.c.campaign_id, ended)
    )
    counts: dict[str, dict[str, int]] = {id: {} for id in campaign_ids}
    for campaign_id, key, count in connection.execute(query):
        counts[campaign_id][key] = count
    return counts


def _campaign_row(connection: Connection, id: str) -> Row[Any]:
    row = connection.execute(select(campaigns).where(campaigns.c.id == id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no campaign {id}")
    return row


def _step_times(connection: Connection, query: Select[Any]) -> Mapping[int, StepTimes]:
    times: defaultdict[int, StepTimes] = defaultdict(StepTimes)
    for attempt_id, warmup, seconds in connection.execute(query):
        of_attempt = times[attempt_id]
        (of_attempt.warmup if warmup else of_attempt.timed).append(seconds)
    return times
