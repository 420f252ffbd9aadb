"""Values from rows and rows from values: pure, no queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Row, null

from meshtune.runners.documents import read_value
from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Event, Lesson
from meshtune.tuner.campaign.proposal import Expectation
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial, TrialState
from meshtune.tuner.store.codec import decode_spec, encode_spec
from meshtune.tuner.store.errors import StoreError
from meshtune.tuner.store.measurement_rows import partial_document


def campaign_row(campaign: Campaign) -> dict[str, Any]:
    return {
        "id": campaign.id,
        "name": campaign.spec.name,
        "spec": encode_spec(campaign.spec),
        "state": str(campaign.state),
        "reason": campaign.reason,
        "created_at": campaign.created_at,
        "updated_at": campaign.updated_at,
        "running_since": campaign.running_since,
        "elapsed_s": campaign.elapsed_s,
        "combinations": campaign.combinations,
        "legal": campaign.legal,
        "search_ended": campaign.search_ended,
        "chance_left": campaign.chance_left,
        "lessons": lessons_document(campaign.lessons),
        "owner": campaign.owner,
        "devices": campaign.spec.cluster.devices,
        "device": campaign.spec.cluster.device.name,
        "workload": campaign.spec.workload.kind,
        "model": campaign.spec.model.name,
        "cluster": campaign.spec.cluster.name,
    }


def campaign_of(row: Row[Any]) -> Campaign:
    """Raises StoreError for a spec that today's rules do not read."""
    try:
        spec = decode_spec(row.spec)
    except ValueError as error:
        raise StoreError(f"campaign {row.id}: its stored spec is not one that this meshtune reads") from error
    return Campaign(
        id=row.id,
        spec=spec,
        state=CampaignState(row.state),
        created_at=row.created_at,
        updated_at=row.updated_at,
        running_since=row.running_since,
        combinations=row.combinations,
        legal=row.legal,
        elapsed_s=row.elapsed_s,
        reason=row.reason,
        search_ended=row.search_ended,
        chance_left=row.chance_left,
        lessons=tuple(Lesson(**lesson) for lesson in row.lessons),
        owner=row.owner,
    )


def lessons_document(lessons: Sequence[Lesson]) -> list[dict[str, Any]]:
    return [asdict(lesson) for lesson in lessons]


def event_of(row: Row[Any]) -> Event:
    return Event(id=row.id, campaign_id=row.campaign_id, at=row.at, kind=row.kind, data=row.data)


def trial_row(trial: Trial) -> dict[str, Any]:
    return {
        "campaign_id": trial.campaign_id,
        "number": trial.number,
        "origin": str(trial.origin),
        "plan_key": trial.plan.key,
        **trial.plan.as_dict(),
        "expectation": null() if trial.expectation is None else asdict(trial.expectation),
    }


def attempt_row(attempt: Attempt, trial_id: int) -> dict[str, Any]:
    """The row of an attempt that is just planned."""
    return {
        "trial_id": trial_id,
        "number": attempt.number,
        "job_name": attempt.job_name,
        "state": str(attempt.state),
        "planned_at": attempt.planned_at,
        "reason": "",
        "log_tail": "",
    }


def node_columns(**nodes: Sequence[str]) -> dict[str, Any]:
    """Columns that list nodes, by their names; none for what is empty, which then stays as it is."""
    return {name: list(found) for name, found in nodes.items() if found}


def outcome_columns(outcome: Outcome) -> dict[str, Any]:
    """What an attempt's row holds of its outcome; the measurement has rows of its own."""
    return {
        "verdict": str(outcome.verdict),
        "reason": outcome.reason,
        "cause": None if outcome.cause is None else str(outcome.cause),
        "phase": outcome.phase,
        "failed_rank": outcome.failed_rank,
        "log_tail": outcome.log_tail,
        "partial": null() if outcome.partial is None else partial_document(outcome.partial),
    }


def trial_of(row: Row[Any], attempts: Sequence[Attempt]) -> Trial:
    return Trial(
        campaign_id=row.campaign_id,
        number=row.number,
        plan=plan_of(row),
        origin=Origin(row.origin),
        attempts=tuple(attempts),
        expectation=None if row.expectation is None else read_value(Expectation, row.expectation),
    )


def plan_of(row: Row[Any]) -> Plan:
    return plan_with(*_plan_values(row))


_plan_values = attrgetter(*PLAN_FIELDS)


@lru_cache(maxsize=20_000)
def plan_with(*values: Any) -> Plan:
    """By the values of its fields. The same few plans are read over and over, and each checks itself when made."""
    return Plan(**dict(zip(PLAN_FIELDS, values, strict=True)))


def attempt_of(row: Row[Any], measurement: Measurement | None) -> Attempt:
    outcome = None
    if row.verdict is not None:
        outcome = Outcome(
            verdict=Verdict(row.verdict),
            measurement=measurement,
            partial=None if row.partial is None else read_value(Measurement, row.partial),
            reason=row.reason,
            cause=None if row.cause is None else Cause(row.cause),
            failed_rank=row.failed_rank,
            phase=row.phase,
            log_tail=row.log_tail,
        )
    return Attempt(
        number=row.number,
        job_name=row.job_name,
        state=TrialState(row.state),
        planned_at=row.planned_at,
        job_id=row.job_id,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        avoid=tuple(row.avoid or ()),
        nodes=tuple(row.nodes or ()),
        failed_nodes=tuple(row.failed_nodes or ()),
        outcome=outcome,
    )
