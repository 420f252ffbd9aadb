"""What events say: every write tells itself in the transaction that changes the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, insert

from meshtune.runners.outcome import Outcome
from meshtune.tuner.campaign.trial import Attempt, Trial
from meshtune.tuner.store.tables import events


def tell(connection: Connection, campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> None:
    """Write one event."""
    connection.execute(insert(events), event_row(campaign_id, now, kind, data))


def event_row(campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> dict[str, object]:
    return {"campaign_id": campaign_id, "at": now, "kind": kind, "data": dict(data)}


def move_data(trial: int, attempt: Attempt | Row[Any]) -> dict[str, object]:
    data: dict[str, object] = {"number": trial, "attempt": attempt.number, "state": str(attempt.state)}
    return {**data, "nodes": list(attempt.nodes)} if attempt.nodes else data


def submitted_data(trial: int, attempt: Row[Any]) -> dict[str, object]:
    data = {**move_data(trial, attempt), "job_id": attempt.job_id}
    return {**data, "avoid": list(attempt.avoid)} if attempt.avoid else data


def planned_data(trial: Trial) -> dict[str, object]:
    data = {**move_data(trial.number, trial.last), "plan": trial.plan.key, "origin": str(trial.origin)}
    return data if trial.expectation is None else {**data, "expectation": asdict(trial.expectation)}


def done_data(trial: int, attempt: Row[Any], outcome: Outcome) -> dict[str, object]:
    data = {**move_data(trial, attempt), "verdict": str(outcome.verdict)}
    if outcome.failure is not None:
        data["failure"] = str(outcome.failure)
    if attempt.failed_nodes:
        data["failed_nodes"] = list(attempt.failed_nodes)
    if outcome.measurement is not None:
        data["step_time_s"] = outcome.measurement.step_time_s
        data["tokens_per_s_per_device"] = outcome.measurement.tokens_per_s_per_device
    return data
