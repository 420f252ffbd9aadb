"""What events say: every write tells itself in the transaction that changes the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import Connection, insert

from tuner.store.tables import events
from tuner.trial import Trial


def tell(connection: Connection, campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> None:
    """Write one event."""
    connection.execute(insert(events), event_row(campaign_id, now, kind, data))


def event_row(campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> dict[str, object]:
    return {"campaign_id": campaign_id, "at": now, "kind": kind, "data": dict(data)}


def move_data(trial: Trial) -> dict[str, object]:
    data: dict[str, object] = {"number": trial.number, "attempt": trial.last.number, "state": str(trial.state)}
    return {**data, "nodes": list(trial.last.nodes)} if trial.last.nodes else data


def submitted_data(trial: Trial) -> dict[str, object]:
    data = {**move_data(trial), "job_id": trial.last.job_id}
    return {**data, "avoid": list(trial.last.avoid)} if trial.last.avoid else data


def planned_data(trial: Trial) -> dict[str, object]:
    data = {**move_data(trial), "plan": trial.plan.key, "origin": str(trial.origin)}
    return data if trial.expectation is None else {**data, "expectation": asdict(trial.expectation)}


def done_data(trial: Trial) -> dict[str, object]:
    data = {**move_data(trial), "verdict": str(trial.verdict)}
    if trial.outcome is not None and trial.outcome.failure is not None:
        data["failure"] = str(trial.outcome.failure)
    if trial.last.failed_nodes:
        data["failed_nodes"] = list(trial.last.failed_nodes)
    if trial.measurement is not None:
        data["step_time_s"] = trial.measurement.step_time_s
        data["tokens_per_s_per_device"] = trial.measurement.tokens_per_s_per_device
    return data
