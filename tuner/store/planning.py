"""Writing down what is to be measured: new trials, and one more attempt of a trial that was lost."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update

from meshtune.tuner.campaign.proposal import Choice
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial, TrialState, job_name
from meshtune.tuner.store import queries
from meshtune.tuner.store.errors import IllegalMove
from meshtune.tuner.store.event_payloads import event_row, planned_data, tell
from meshtune.tuner.store.rows import attempt_row, trial_row
from meshtune.tuner.store.rules import require_new, require_running, thing
from meshtune.tuner.store.tables import attempts, campaigns, events, trials


def plan_trials(
    connection: Connection,
    campaign_id: str,
    choices: Sequence[Choice],
    origin: Origin,
    chance_left: float | None,
    now: float,
) -> list[Trial]:
    """As `Store.plan_trials`."""
    require_running(connection, campaign_id, f"a new trial of campaign {campaign_id}", "new")
    if chance_left is not None:
        values = {"chance_left": chance_left, "updated_at": now}
        connection.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(values))
        tell(connection, campaign_id, now, "search.asked", {"chance_left": chance_left})
    if not choices:
        return []
    require_new(connection, campaign_id, choices, origin)
    first = queries.next_trial_number(connection, campaign_id)
    planned = [
        Trial(
            campaign_id=campaign_id,
            number=number,
            plan=choice.plan,
            origin=origin,
            attempts=(_planned_attempt(campaign_id, number, 1, now),),
            expectation=choice.expectation,
        )
        for number, choice in enumerate(choices, start=first)
    ]
    ids = connection.scalars(
        insert(trials).returning(trials.c.id, sort_by_parameter_order=True),
        [trial_row(trial) for trial in planned],
    ).all()
    rows = [attempt_row(trial.last, id) for trial, id in zip(planned, ids, strict=True)]
    connection.execute(insert(attempts), rows)
    told = [event_row(campaign_id, now, "trial.planned", planned_data(trial)) for trial in planned]
    connection.execute(insert(events), told)
    return planned


def plan_attempt(connection: Connection, campaign_id: str, number: int, now: float) -> Trial:
    """As `Store.plan_attempt`."""
    trial = queries.trial(connection, campaign_id, number)
    subject = thing(campaign_id, number, trial.last.number)
    require_running(connection, campaign_id, subject, trial.state)
    if trial.verdict is None or not trial.verdict.retryable:
        state = trial.state if trial.verdict is None else f"{trial.state} ({trial.verdict})"
        why = "only what the infrastructure lost is tried again"
        raise IllegalMove(subject, state, TrialState.PLANNED, why)
    attempt = _planned_attempt(campaign_id, number, trial.last.number + 1, now)
    lost = select(attempts.c.trial_id).where(attempts.c.job_name == trial.last.job_name)
    connection.execute(insert(attempts), attempt_row(attempt, connection.scalars(lost).one()))
    trial = queries.trial(connection, campaign_id, number)
    tell(connection, campaign_id, now, "trial.planned", planned_data(trial))
    return trial


def _planned_attempt(campaign_id: str, trial_number: int, number: int, now: float) -> Attempt:
    name = job_name(campaign_id, trial_number, number)
    return Attempt(number=number, job_name=name, state=TrialState.PLANNED, planned_at=now)
