"""Jobs in flight, device time used, quotas of owners and failed nodes, counted over all campaigns of the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, case, func, or_, select

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.access.quotas import ALIVE_S, CLAIM_S, RECENT_S, Demand
from meshtune.tuner.access.tokens import DEVICE_HOURS_WITHIN_S, TRIALS_WITHIN_S, UNLIMITED, Quotas, Used
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.decide import standing_faults
from meshtune.tuner.campaign.spec import DEFAULT_TIME_LIMIT_S
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.tables import TRIAL_DEVICES, attempts, campaigns, tokens, trials

# A job that nobody looks at counts for its time limit and so much more: how long a runner takes to end it.
GRACE_S = 60.0
_TIMES = tuple(attempts.c[name] for name in ("submitted_at", "started_at", "finished_at", "running_s"))
ACTIVE = [str(state) for state in CampaignState if state.active]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The whole database, counted."""

    # Campaigns, by state.
    campaigns: Mapping[str, int]
    # Trials that ended, by the verdict of their last attempt.
    verdicts: Mapping[str, int]
    # The other trials, by the state of their last attempt.
    in_flight: Mapping[str, int]
    # Devices times the seconds that jobs have held them, by the campaigns' owners.
    device_s: Mapping[str, float]


class Usage:
    """The part of `Store` that counts over all campaigns."""

    _database: Database

    def demands(self, asking: str, now: float) -> list[Demand]:
        """The jobs that every campaign has in flight and wants. asking: the one that is worked on just now."""
        with self._database.reading() as connection:
            return read_demands(connection, asking, now)

    def spent_device_s(self, since: float, now: float, owner: str | None = None) -> float:
        """Devices times the seconds that jobs have held them since then: of all campaigns, or of one owner's."""
        with self._database.reading() as connection:
            return read_spent_device_s(connection, since, now, owner)

    def node_faults(self, device: str, since: float) -> Mapping[str, int]:
        """How often each node failed under jobs of any campaign on this device that ended since then, and after the
        node last ran a job well."""
        columns = (attempts.c.nodes, attempts.c.failed_nodes, attempts.c.verdict == str(Verdict.OK))
        # Not the sound nodes of another kind than one campaign's baseline.
        of_device = (campaigns.c.device == device, func.coalesce(attempts.c.cause, "") != str(Cause.OTHER_HARDWARE))
        here = _of_campaigns(select(*columns)).where(*of_device).order_by(attempts.c.finished_at)
        first = _of_campaigns(select(func.min(attempts.c.finished_at))).where(
            attempts.c.finished_at >= since, attempts.c.failed_nodes.is_not(None), *of_device
        )
        with self._database.reading() as connection:
            if (failed_at := connection.scalar(first)) is None:
                return Counter()
            rows = connection.execute(here.where(attempts.c.finished_at >= failed_at)).all()
            return standing_faults([(nodes or (), failed or (), bool(well)) for nodes, failed, well in rows])

    def figures(self, now: float) -> Figures:
        """Campaigns and trials counted over the whole database, and the device time that they have used."""
        newer = attempts.alias()
        last = (
            select(attempts.c.verdict, attempts.c.state, func.count())
            .outerjoin(newer, and_(newer.c.trial_id == attempts.c.trial_id, newer.c.number > attempts.c.number))
            .where(newer.c.id.is_(None))
            .group_by(attempts.c.verdict, attempts.c.state)
        )
        with self._database.reading() as connection:
            verdicts: Counter[str] = Counter()
            in_flight: Counter[str] = Counter()
            for verdict, state, count in connection.execute(last):
                (in_flight if verdict is None else verdicts)[verdict or state] += count
            by_state = select(campaigns.c.state, func.count()).group_by(campaigns.c.state)
            by_owner = _spent(0.0, now).add_columns(campaigns.c.owner).group_by(campaigns.c.owner)
            return Figures(
                campaigns={state: count for state, count in connection.execute(by_state)},
                verdicts=verdicts,
                in_flight=in_flight,
                device_s={owner: max(0.0, held_s) for held_s, owner in connection.execute(by_owner)},
            )


def read_demands(connection: Connection, asking: str, now: float) -> list[Demand]:
    """One for each campaign that is not over; used_device_s counts from when the youngest of those that want jobs was
    created, since RECENT_S at the most: who comes later neither pays nor gains for what was before."""
    columns = (campaigns.c.id, campaigns.c.spec, campaigns.c.state, campaigns.c.created_at, campaigns.c.updated_at)
    query: Select[Any] = select(*columns, campaigns.c.owner, campaigns.c.devices, campaigns.c.search_ended)
    query = query.where(campaigns.c.state.in_(ACTIVE))
    rows = connection.execute(query).all()
    alive = {row.id for row in rows if row.id == asking or now - row.updated_at < ALIVE_S}
    wanting = [row for row in rows if row.id in alive and row.state == CampaignState.RUNNING]
    since = max([now - RECENT_S, *(row.created_at for row in wanting)])
    jobs = _jobs(connection, since)
    return [_demand(row, jobs[row.id], row.id in alive, since, now) for row in rows]


def read_spent_device_s(connection: Connection, since: float, now: float, owner: str | None = None) -> float:
    """Devices times the seconds that jobs held them, of those that ran after `since`: each for no longer than since
    then. Of those that run, as last saved. owner: of its campaigns alone."""
    query = _spent(since, now)
    if owner is not None:
        query = query.where(campaigns.c.owner == owner)
    spent: float | None = connection.scalar(query)
    return max(0.0, spent or 0.0)


def _spent(since: float, now: float) -> Select[Any]:
    """See `read_spent_device_s`."""
    within_s = func.coalesce(attempts.c.finished_at, now) - since
    held_s = case((attempts.c.running_s > within_s, within_s), else_=attempts.c.running_s)
    return _of_campaigns(select(func.sum(held_s * TRIAL_DEVICES))).where(
        attempts.c.running_s > 0, or_(attempts.c.finished_at.is_(None), attempts.c.finished_at > since)
    )


def token_quotas(connection: Connection, owner: str) -> Quotas:
    row = connection.execute(select(tokens).where(tokens.c.name == owner)).one_or_none()
    if row is None:
        return UNLIMITED
    return Quotas(campaigns=row.campaigns, trials=row.trials, device_hours=row.device_hours)


def owner_usage(connection: Connection, owner: str, now: float) -> Used:
    active = select(func.count()).where(campaigns.c.owner == owner, campaigns.c.state.in_(ACTIVE))
    planned = _of_campaigns(select(func.count())).where(
        campaigns.c.owner == owner, attempts.c.number == 1, attempts.c.planned_at > now - TRIALS_WITHIN_S
    )
    return Used(
        campaigns=connection.scalar(active) or 0,
        trials=connection.scalar(planned) or 0,
        device_hours=read_spent_device_s(connection, now - DEVICE_HOURS_WITHIN_S, now, owner) / 3600.0,
    )


def _jobs(connection: Connection, since: float) -> Mapping[str, Sequence[Row[Any]]]:
    """By campaign: the attempts that have not ended, and those that ended since then."""
    columns = (trials.c.campaign_id, attempts.c.state, attempts.c.claimed_at, *_TIMES, TRIAL_DEVICES.label("devices"))
    query = _of_campaigns(select(*columns)).where(
        campaigns.c.state.in_(ACTIVE), or_(attempts.c.finished_at.is_(None), attempts.c.finished_at > since)
    )
    jobs: defaultdict[str, list[Row[Any]]] = defaultdict(list)
    for row in connection.execute(query):
        jobs[row.campaign_id].append(row)
    return jobs


def _demand(campaign: Row[Any], jobs: Sequence[Row[Any]], alive: bool, since: float, now: float) -> Demand:
    parallel, time_limit_s = _limits(campaign.spec)
    in_flight = sum(_in_flight(job, alive, time_limit_s, now) for job in jobs)
    wanted = in_flight
    if alive and campaign.state == CampaignState.RUNNING:
        unfinished = sum(job.state != TrialState.DONE for job in jobs)
        wanted = max(min(unfinished, parallel), in_flight, 0 if campaign.search_ended else parallel)
    return Demand(
        campaign_id=campaign.id,
        owner=campaign.owner or "",
        devices=campaign.devices,
        in_flight=in_flight,
        wanted=wanted,
        used_device_s=sum(_held_s(job, since, now) * job.devices for job in jobs),
    )


def _in_flight(job: Row[Any], alive: bool, time_limit_s: float, now: float) -> bool:
    if job.state == TrialState.PLANNED:
        return job.claimed_at is not None and now - job.claimed_at < CLAIM_S
    if job.state == TrialState.DONE:
        return False
    heard_at = max(job.submitted_at, job.started_at or 0.0)
    return alive or now - heard_at < time_limit_s + GRACE_S


def _held_s(job: Row[Any], since: float, now: float) -> float:
    """Seconds after `since` that the job held its devices, as far as they were saved."""
    end = now if job.finished_at is None else job.finished_at
    held_s: float = max(0.0, min(job.running_s, end - since))
    return held_s


def _limits(spec: Any) -> tuple[int, float]:
    """Jobs at once and seconds of each; none of a spec that is unreadable, which nobody drives."""
    try:
        return int(spec["parallel"]), float(spec["trial"]["time_limit_s"] or DEFAULT_TIME_LIMIT_S)
    except (TypeError, ValueError, KeyError):
        return 0, 0.0


def _of_campaigns(query: Select[Any]) -> Select[Any]:
    """A query over attempts, with what they belong to."""
    return (
        query.select_from(attempts)
        .join(trials, trials.c.id == attempts.c.trial_id)
        .join(campaigns, campaigns.c.id == trials.c.campaign_id)
    )
