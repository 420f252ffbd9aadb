"""Events: each write of a campaign or a trial adds one, in the transaction that changes the rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select

from meshtune.runners.outcome import Outcome
from meshtune.tuner.campaign.campaign import Event
from meshtune.tuner.campaign.trial import Attempt, Trial
from meshtune.tuner.store.rows import event_of
from meshtune.tuner.store.tables import events

# Made once, since making them takes longer than asking: each campaign that is driven asks at every look.
_AFTER = select(events).where(events.c.id > bindparam("after")).order_by(events.c.id).limit(bindparam("most"))
_AFTER_OF = _AFTER.where(events.c.campaign_id == bindparam("of"))
_NEWEST = select(events.c.id).order_by(events.c.id.desc()).limit(1)
_NEWEST_OF = _NEWEST.where(events.c.campaign_id == bindparam("of"))


def add_event(connection: Connection, campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> None:
    connection.execute(insert(events), event_row(campaign_id, now, kind, data))


def event_row(campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> dict[str, object]:
    return {"campaign_id": campaign_id, "at": now, "kind": kind, "data": dict(data)}


def events_after(connection: Connection, campaign_id: str | None, after: int, limit: int) -> list[Event]:
    """The first ones with ids above `after`, of one campaign or (None) of all."""
    query = _AFTER if campaign_id is None else _AFTER_OF
    of = {} if campaign_id is None else {"of": campaign_id}
    return [event_of(row) for row in connection.execute(query, {"after": after, "most": limit, **of})]


def newest_event(connection: Connection, campaign_id: str | None, kinds: Collection[str]) -> int:
    """The id of the newest event, of one campaign or (None) of all; 0 for none. kinds: of these alone, if any."""
    query = _NEWEST if campaign_id is None else _NEWEST_OF
    query = query.where(events.c.kind.in_(kinds)) if kinds else query
    return connection.scalar(query, {} if campaign_id is None else {"of": campaign_id}) or 0


def planned_data(trial: Trial) -> dict[str, object]:
    data = {**moved_data(trial.number, trial.last), "plan": trial.plan.key, "origin": str(trial.origin)}
    return data if trial.expectation is None else {**data, "expectation": asdict(trial.expectation)}


def submitted_data(trial: int, attempt: Row[Any]) -> dict[str, object]:
    data = {**moved_data(trial, attempt), "job_id": attempt.job_id}
    return {**data, "avoid": list(attempt.avoid)} if attempt.avoid else data


def moved_data(trial: int, attempt: Attempt | Row[Any]) -> dict[str, object]:
    data: dict[str, object] = {"number": trial, "attempt": attempt.number, "state": str(attempt.state)}
    return {**data, "nodes": list(attempt.nodes)} if attempt.nodes else data


def done_data(trial: int, attempt: Row[Any], outcome: Outcome) -> dict[str, object]:
    data = {**moved_data(trial, attempt), "verdict": str(outcome.verdict)}
    if outcome.failure is not None:
        data["failure"] = str(outcome.failure)
    if attempt.failed_nodes:
        data["failed_nodes"] = list(attempt.failed_nodes)
    if outcome.measurement is not None:
        data["step_time_s"] = outcome.measurement.step_time_s
        data["tokens_per_s_per_device"] = outcome.measurement.tokens_per_s_per_device
    return data
