"""Pages of campaigns and trials, filtered and sorted by the database.

The last attempt of a trial is the one with the highest number. Filters and orders are columns or sums of columns; the
work of a page grows with the trials of its one campaign, not with those of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from meshtune.runners.base import Cause
from meshtune.runners.outcome import FAILED, Verdict, failure_of
from meshtune.search_spaces.knob_values import KnobValue, word
from meshtune.tuner.access.tokens import OPERATOR, Rights
from meshtune.tuner.campaign import listing
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.trial import FIRST_RUNS, Origin, Trial, TrialState
from meshtune.tuner.store.campaigns import read_campaign, readable_by
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import Unreadable, reading_row
from meshtune.tuner.store.tables import TRIAL_DEVICES, attempts, campaigns, events, measurements, trials
from meshtune.tuner.store.trials import read_trials, trials_numbered

_newer = attempts.alias("newer")
_held = attempts.alias("held")
_LAST = attempts.c.number == (
    sa.select(sa.func.max(_newer.c.number)).where(_newer.c.trial_id == trials.c.id).scalar_subquery()
)


def _device_s(of: sa.FromClause) -> sa.ColumnElement[float]:
    """Devices times `Attempt.running_s`, over attempts that have ended."""
    held_s = sa.case((of.c.finished_at.is_not(None), of.c.running_s), else_=0.0)
    return sa.func.coalesce(sa.func.sum(held_s * TRIAL_DEVICES), 0.0)


_DEVICE_S = sa.select(_device_s(_held)).where(_held.c.trial_id == trials.c.id).scalar_subquery()
_next = attempts.alias()
_ALIKE = (trials.c.origin, attempts.c.state, attempts.c.verdict, attempts.c.cause, _next.c.id.is_(None).label("last"))
_TALLIES = (
    sa.select(*_ALIKE, sa.func.count().label("attempts"), _device_s(attempts).label("device_s"))
    .join_from(trials, attempts, attempts.c.trial_id == trials.c.id)
    .outerjoin(_next, sa.and_(_next.c.trial_id == trials.c.id, _next.c.number == attempts.c.number + 1))
    .where(trials.c.campaign_id == sa.bindparam("of"))
    .group_by(*_ALIKE)
)
_NEWEST = sa.select(sa.func.max(events.c.id)).where(events.c.campaign_id == campaigns.c.id).scalar_subquery()
_TOKENS_RATE = (
    sa.cast(measurements.c.tokens_per_step, sa.Double) / measurements.c.mean_step_time_s / measurements.c.devices
)
# As of the campaign's Yardstick, which says the parameters.
_SHAPES, _PEAK = (sa.bindparam(name, type_=sa.Double) for name in ("flops_by_shapes", "peak_flops"))
_OWN_FLOPS = measurements.c.model_flops_per_token
_TFLOPS = sa.func.coalesce(sa.func.nullif(_OWN_FLOPS, 0.0), _SHAPES) * _TOKENS_RATE / 1e12
_OWN_MFU = _OWN_FLOPS * _TOKENS_RATE / sa.func.nullif(measurements.c.peak_flops_per_device, 0.0)
_TRIAL_KEYS: Mapping[str, sa.ColumnElement[Any]] = {
    listing.NUMBER: trials.c.number,
    listing.STEP_TIME: measurements.c.mean_step_time_s,
    listing.TOKENS_PER_S_PER_DEVICE: _TOKENS_RATE,
    listing.TFLOPS_PER_DEVICE: _TFLOPS,
    listing.MFU: sa.func.coalesce(1e12 * _TFLOPS / _PEAK, _OWN_MFU),
    "peak_memory_bytes": measurements.c.max_memory_bytes,
    listing.DEVICE_SECONDS: _DEVICE_S,
    "finished_at": attempts.c.finished_at,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Attempts of a campaign that are alike. last: no other followed; then they stand for their trials. device_s: how
    long their jobs held devices, in seconds of one device."""

    origin: Origin
    state: TrialState
    verdict: Verdict | None
    failure: Cause | None
    last: bool
    attempts: int
    device_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A campaign's trials for its summary. first: the numbers of the first measured ones in the order asked for.
    trials: these as `Pages.listed` has them, the baseline, and every plan that was to be measured again."""

    tallies: Sequence[Tally]
    first: Collection[int]
    trials: Sequence[Trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A campaign of a page and its version: what was read of it holds while these stay."""

    id: str
    # The id of its newest event: no trial has changed since.
    event: int
    updated_at: float
    # By which the page is sorted.
    value: float | str


class Pages:
    """Reading for lists; the same promises as `Store` makes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def stamps(self, wanted: listing.CampaignsWanted, reader: Rights = OPERATOR) -> list[Stamp]:
        """A page of campaigns that the reader may read, by their ids and versions."""
        value = campaigns.c[wanted.order.key]
        columns = (campaigns.c.id, campaigns.c.updated_at, value.label("value"), _NEWEST.label("event"))
        given = {name: getattr(wanted, name) for name in ("owner", "project", "model", "cluster")}
        exact = (campaigns.c[name] == one for name, one in given.items() if one is not None)
        query = sa.select(*columns).where(*readable_by(reader), *exact, *_within(campaigns.c, wanted))
        if wanted.state:
            query = query.where(campaigns.c.state.in_([str(state) for state in wanted.state]))
        if wanted.tag:
            query = query.where(campaigns.c.tags.contains(f" {wanted.tag} ", autoescape=True))
        if wanted.name:
            query = query.where(campaigns.c.name.icontains(wanted.name, autoescape=True))
        if wanted.after is not None:
            place, last = sa.tuple_(value, campaigns.c.id), sa.tuple_(wanted.after.value, wanted.after.name)
            query = query.where(place < last if wanted.order.descending else place > last)
        ends = (value, campaigns.c.id)
        query = query.order_by(*(end.desc() if wanted.order.descending else end for end in ends)).limit(wanted.limit)
        with self._database.reading() as connection:
            return [Stamp(**row._mapping) for row in connection.execute(query)]

    def trials(
        self, campaign_id: str, wanted: listing.TrialsWanted, *, listed: bool = False
    ) -> list[tuple[int, Trial | str, float | None]]:
        """A page of a campaign's trials, each with its number, or what is wrong with it, and the value that it is
        sorted by; none for no campaign. listed: without steps, values of single ranks, profiles and logs."""
        with self._database.reading() as connection:
            of_flops = {wanted.order.key, *wanted.at_least, *wanted.at_most} & {listing.MFU, listing.TFLOPS_PER_DEVICE}
            yardstick = yardstick_of(read_campaign(connection, campaign_id).spec) if of_flops else None
            known = {name: getattr(yardstick, name, None) for name in ("flops_by_shapes", "peak_flops")}
            rows = connection.execute(_trial_page(campaign_id, wanted), known).all()
            read = _readable(connection, campaign_id, [row.number for row in rows], listed)
        return [(row.number, read[row.number], row.value) for row in rows]

    def listed(self, campaign_id: str) -> list[Trial]:
        """All trials of a campaign as `trials` lists them, in the order of their numbers."""
        with self._database.reading() as connection:
            return read_trials(connection, campaign_id, listed=True)

    def overview(self, campaign_id: str, order: listing.Order[listing.TrialKey], limit: int) -> Overview:
        """limit: of `Overview.first`."""
        wanted = listing.TrialsWanted(order=order, verdict=(Verdict.OK,), origin=FIRST_RUNS, limit=limit)
        of_campaign, again = trials.c.campaign_id == campaign_id, trials.c.origin == str(Origin.CONFIRMATION)
        repeated = trials.c.plan_key.in_(sa.select(trials.c.plan_key).where(of_campaign, again))
        compared = sa.or_(repeated, trials.c.origin == str(Origin.BASELINE))
        with self._database.reading() as connection:
            with reading_row(f"a trial of campaign {campaign_id}"):
                tallies = [_tally(row) for row in connection.execute(_TALLIES, {"of": campaign_id})]
            first = [row.number for row in connection.execute(_trial_page(campaign_id, wanted))]
            others = connection.scalars(sa.select(trials.c.number).where(of_campaign, compared))
            by_number = trials_numbered(connection, campaign_id, {*first, *others}, listed=True)
        return Overview(tallies=tallies, first=first, trials=list(by_number.values()))

    def numbered(self, campaign_id: str, numbers: Collection[int]) -> dict[int, Trial]:
        """Those of the campaign's trials that there are, complete, by number."""
        with self._database.reading() as connection:
            return trials_numbered(connection, campaign_id, numbers)


def _readable(
    connection: sa.Connection, campaign_id: str, numbers: Sequence[int], listed: bool
) -> Mapping[int, Trial | str]:
    """The trials of these numbers; of one that is unreadable, what is wrong."""
    try:
        return trials_numbered(connection, campaign_id, numbers, listed=listed)
    except Unreadable as error:
        if len(numbers) == 1:
            return {numbers[0]: str(error)}
    halves = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    return {n: trial for half in halves for n, trial in _readable(connection, campaign_id, half, listed).items()}


def _tally(row: sa.Row[Any]) -> Tally:
    verdict = None if row.verdict is None else Verdict(row.verdict)
    cause = None if row.cause is None else Cause(row.cause)
    return Tally(
        origin=Origin(row.origin),
        state=TrialState(row.state),
        verdict=verdict,
        failure=None if verdict is None else failure_of(verdict, cause),
        last=row.last,
        attempts=row.attempts,
        device_s=row.device_s,
    )


def _within(columns: Any, wanted: listing.CampaignsWanted | listing.TrialsWanted) -> list[sa.ColumnElement[bool]]:
    """Comparisons with NULL are never true."""
    least = [columns[name] >= value for name, value in wanted.at_least.items()]
    return [*least, *(columns[name] <= value for name, value in wanted.at_most.items())]


def _trial_page(campaign_id: str, wanted: listing.TrialsWanted) -> sa.Select[Any]:
    """The numbers and values of the page, by the last attempt of each trial and its measurement."""
    value = _TRIAL_KEYS[wanted.order.key]
    query = (
        sa.select(trials.c.number, value.label("value"))
        .select_from(trials)
        .join(attempts, sa.and_(attempts.c.trial_id == trials.c.id, _LAST))
        .outerjoin(measurements, measurements.c.attempt_id == attempts.c.id)
        .where(trials.c.campaign_id == campaign_id, *_trial_filters(wanted))
    )
    if wanted.after is not None:
        query = query.where(_after(wanted, value))
    by_value = value.desc() if wanted.order.descending else value
    if wanted.order.key == listing.NUMBER:
        return query.order_by(by_value).limit(wanted.limit)
    return query.order_by(value.is_(None), by_value, trials.c.number).limit(wanted.limit)


def _after(wanted: listing.TrialsWanted, value: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """What comes after the cursor: larger (smaller) values, equal ones with larger numbers, and those without any."""
    assert wanted.after is not None
    last, number = wanted.after.value, wanted.after.name
    if last is None:
        return sa.and_(value.is_(None), trials.c.number > number)
    further = value < last if wanted.order.descending else value > last
    if wanted.order.key == listing.NUMBER:
        return further  # no two are equal; so said, an index finds the place
    return sa.or_(further, sa.and_(value == last, trials.c.number > number), value.is_(None))


def _trial_filters(wanted: listing.TrialsWanted) -> list[sa.ColumnElement[bool]]:
    among: list[tuple[sa.ColumnElement[Any], Collection[object]]] = [
        (attempts.c.verdict, wanted.verdict),
        (attempts.c.state, wanted.state),
        (trials.c.origin, wanted.origin),
        (trials.c.number, wanted.number),
        *((trials.c[name], values) for name, values in wanted.plan.items()),
    ]
    filters: list[sa.ColumnElement[bool]] = [
        column.in_([str(value) if isinstance(value, StrEnum) else value for value in values])
        for column, values in among
        if values
    ]
    filters += [_has_knob(name, values) for name, values in wanted.knobs.items() if values]
    filters += _within(_TRIAL_KEYS, wanted)
    return [*filters, _failed(wanted.failure)] if wanted.failure else filters


def _has_knob(name: str, values: Collection[KnobValue | None]) -> sa.ColumnElement[bool]:
    """By the plan's key, which ends with name=value of each active knob; LIKE would ignore the case."""
    key = trials.c.plan_key + " "
    words = {text for value in values if value is not None for text in _words(value)}
    given = [sa.func.replace(key, f" {name}={text} ", "") != key for text in sorted(words)]
    inactive = [sa.func.replace(key, f" {name}=", "") == key] if None in values else []
    return sa.or_(*given, *inactive)


def _words(value: KnobValue) -> set[str]:
    """How keys write the value; 1 and 1.0 are equal."""
    if isinstance(value, (bool, str)):
        return {word(value)}
    return {word(value), word(float(value)), *([word(int(value))] if value == int(value) else [])}


def _failed(causes: Collection[Cause]) -> sa.ColumnElement[bool]:
    """As `Outcome.failure`: the cause that was named, else the verdict's own."""
    own = [str(verdict) for verdict, cause in FAILED.items() if cause in causes]
    unnamed = sa.and_(attempts.c.cause.is_(None), attempts.c.verdict.in_(own))
    return sa.or_(attempts.c.cause.in_([str(cause) for cause in causes]), unnamed)
