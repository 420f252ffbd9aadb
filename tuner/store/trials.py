"""Trials and their attempts in the database: planned, moved on, finished, read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, func, insert, select, update

from meshtune.runners.outcome import Outcome
from meshtune.tuner.access.quotas import CLAIM_S, ServiceLimits, refusal
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import FIRST_RUNS, Attempt, Choice, Origin, Trial, TrialState, job_name
from meshtune.tuner.store import rows as stored
from meshtune.tuner.store.campaigns import add_event, event_row, read_campaign, require_running
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import AlreadyExists, IllegalMove, NotFound, Unreadable, reading_row
from meshtune.tuner.store.tables import attempts, campaigns, events, measurements, steps, trials
from meshtune.tuner.store.usage import read_demands

_OF_MEASUREMENTS = [column for column in measurements.c if not column.primary_key]
# Made once, since making it takes longer than asking.
_LAST = (
    select(*(attempts.c[name] for name in ("id", "number", "state", "claimed_at", "started_at")))
    .join(trials, trials.c.id == attempts.c.trial_id)
    .where(trials.c.campaign_id == bindparam("of"), trials.c.number == bindparam("trial"))
    .order_by(attempts.c.number.desc())
    .limit(1)
)
# The columns of an attempt that its events hold.
_IN_EVENTS = [attempts.c[name] for name in ("id", "number", "state", "nodes", "failed_nodes")]


class TrialRows:
    _database: Database

    def plan_trials(
        self,
        campaign_id: str,
        choices: Sequence[Choice],
        origin: Origin,
        *,
        round: int = 0,
        within_budget: bool = False,
        chance_left: float | None = None,
        now: float,
    ) -> list[Trial]:
        """The new trials, numbered on from the last one, each with a PLANNED first attempt: all of them or none.

        round: of second runs. within_budget: choices beyond the campaign's are left out: people may have put in plans
        since it was asked for them, or changed the budget. chance_left: the search's word on what it did not choose; it
        is kept even where nothing is chosen. None: what it said before stays. Raises NotFound, IllegalMove when the
        campaign is not RUNNING, AlreadyExists for a plan that comes twice or that the campaign has; each round of
        confirmations may repeat it once.
        """
        with self._database.writing() as connection:
            subject = f"a new trial of campaign {campaign_id}"
            require_running(connection, campaign_id, subject, "new", TrialState.PLANNED)
            if chance_left is not None:
                values = {"chance_left": chance_left, "updated_at": now}
                connection.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(values))
                add_event(connection, campaign_id, now, "search.asked", {"chance_left": chance_left})
            if within_budget:
                choices = choices[: room_left(connection, read_campaign(connection, campaign_id))]
            return insert_trials(connection, campaign_id, choices, origin, round, now) if choices else []

    def plan_attempt(self, campaign_id: str, number: int, *, now: float) -> Trial:
        """The trial with one more attempt, PLANNED. Raises NotFound, or IllegalMove when the campaign is not RUNNING
        or the last attempt is not DONE with a retryable verdict."""
        with self._database.writing() as connection:
            trial = _read_trial(connection, campaign_id, number)
            subject = _name(campaign_id, number, trial.last.number)
            require_running(connection, campaign_id, subject, trial.state, TrialState.PLANNED)
            if trial.outcome is None or not (trial.outcome.retryable or trial.late_baseline):
                state = trial.state if trial.verdict is None else f"{trial.state} ({trial.verdict})"
                why = "only what the infrastructure lost, or a queue limit withdrew, is tried again"
                raise IllegalMove(subject, state, TrialState.PLANNED, why)
            attempt = _planned_attempt(campaign_id, number, trial.last.number + 1, now)
            lost = select(attempts.c.trial_id).where(attempts.c.job_name == trial.last.job_name)
            connection.execute(insert(attempts), stored.attempt_row(attempt, connection.scalars(lost).one()))
            trial = _read_trial(connection, campaign_id, number)
            add_event(connection, campaign_id, now, "trial.planned", _planned_data(trial))
            return trial

    def claim(self, campaign_id: str, number: int, limits: ServiceLimits, *, now: float) -> bool:
        """Whether the trial's planned attempt may be sent now: one decision for all processes, so that no two take the
        last place. It counts as sent for CLAIM_S from now, and may be claimed again. Raises NotFound."""
        with self._database.writing() as connection:
            last = _last_attempt(connection, campaign_id, number)
            held = last.claimed_at is not None and now - last.claimed_at < CLAIM_S
            if not held and refusal(limits, read_demands(connection, campaign_id, now), campaign_id):
                return False
            connection.execute(update(attempts).where(attempts.c.id == last.id).values(claimed_at=now))
            return True

    def mark_submitted(
        self, campaign_id: str, number: int, job_id: str, *, avoid: Sequence[str] = (), now: float
    ) -> None:
        """The trial's last attempt is SUBMITTED as `job_id`. Raises NotFound, IllegalMove."""
        with self._database.writing() as connection:
            values = {"job_id": job_id, "submitted_at": now, "wait": "", **stored.node_columns(avoid=avoid)}
            moved = _advance(connection, campaign_id, number, TrialState.SUBMITTED, values)
            data = {**_moved_data(number, moved), "job_id": job_id, **stored.node_columns(avoid=avoid)}
            add_event(connection, campaign_id, now, "trial.submitted", data)

    def note_wait(self, campaign_id: str, number: int, wait: str, *, now: float) -> None:
        """Why the trial's last attempt has not started yet, in the runner's words; nothing where it has by now. Raises
        NotFound."""
        with self._database.writing() as connection:
            last = _last_attempt(connection, campaign_id, number)
            if not TrialState(last.state).may_become(TrialState.RUNNING):
                return
            connection.execute(update(attempts).where(attempts.c.id == last.id).values(wait=wait))
            data = {"number": number, "attempt": last.number, "state": last.state, "wait": wait}
            add_event(connection, campaign_id, now, "trial.waits", data)

    def mark_running(
        self, campaign_id: str, number: int, *, started_at: float, nodes: Sequence[str] = (), now: float
    ) -> None:
        """The trial's last attempt is RUNNING since `started_at`. Raises NotFound, IllegalMove."""
        with self._database.writing() as connection:
            values = {"started_at": started_at, "wait": "", **stored.node_columns(nodes=nodes)}
            moved = _advance(connection, campaign_id, number, TrialState.RUNNING, values)
            add_event(connection, campaign_id, now, "trial.running", _moved_data(number, moved))

    def finish(
        self,
        campaign_id: str,
        number: int,
        outcome: Outcome,
        *,
        started_at: float | None,
        finished_at: float,
        running_s: float | None = None,
        nodes: Sequence[str] = (),
        failed_nodes: Sequence[str] = (),
        now: float,
    ) -> None:
        """The trial's last attempt is DONE with `outcome`, every step of its measurement kept.

        started_at None, no nodes: unknown to the caller; what `mark_running` said stays. running_s None: from start to
        end, both by one clock. Raises NotFound, and IllegalMove for an attempt that is DONE already.
        """
        with self._database.writing() as connection:
            values = {
                **stored.outcome_columns(outcome),
                **stored.node_columns(nodes=nodes, failed_nodes=failed_nodes),
                "finished_at": finished_at,
                "wait": "",
            }
            if started_at is not None:
                values["started_at"] = started_at
            if running_s is None:
                began = _last_attempt(connection, campaign_id, number).started_at if started_at is None else started_at
                running_s = 0.0 if began is None else max(0.0, finished_at - began)
            values["running_s"] = running_s
            done = _advance(connection, campaign_id, number, TrialState.DONE, values)
            if outcome.measurement is not None:
                connection.execute(insert(measurements), stored.measurement_row(outcome.measurement, done.id))
                connection.execute(insert(steps), stored.step_rows(outcome.measurement, done.id))
            add_event(connection, campaign_id, now, "trial.done", _done_data(number, done, outcome))

    def trial(self, campaign_id: str, number: int) -> Trial:
        """Raises NotFound."""
        with self._database.reading() as connection:
            return _read_trial(connection, campaign_id, number)

    def trials(self, campaign_id: str, *, limit: int | None = None) -> list[Trial]:
        """The first trials, complete, in the order of their numbers; none for no campaign."""
        with self._database.reading() as connection:
            return read_trials(connection, campaign_id, limit=limit)

    def readable_trials(self, campaign_id: str, *, limit: int | None = None) -> list[Trial]:
        """As `trials`, for who looks at many campaigns: none where one is unreadable."""
        try:
            return self.trials(campaign_id, limit=limit)
        except Unreadable:
            return []

    def verdict_counts(self, campaign_ids: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """For each of the campaigns: trials by the verdict of their last attempt, by its state while it has none."""
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
        with self._database.reading() as connection:
            for campaign_id, key, count in connection.execute(query):
                counts[campaign_id][key] = count
        return counts


def insert_trials(
    connection: Connection, campaign_id: str, choices: Sequence[Choice], origin: Origin, round: int, now: float
) -> list[Trial]:
    """As `TrialRows.plan_trials`, whatever the campaign's state."""
    _require_new_plans(connection, campaign_id, choices, origin, round)
    highest = connection.scalar(select(func.max(trials.c.number)).where(trials.c.campaign_id == campaign_id))
    planned = [
        Trial(
            campaign_id=campaign_id,
            number=number,
            plan=choice.plan,
            origin=origin,
            attempts=(_planned_attempt(campaign_id, number, 1, now),),
            expectation=choice.expectation,
            round=round,
        )
        for number, choice in enumerate(choices, start=0 if highest is None else highest + 1)
    ]
    ids = connection.scalars(
        insert(trials).returning(trials.c.id, sort_by_parameter_order=True),
        [stored.trial_row(trial) for trial in planned],
    ).all()
    rows = [stored.attempt_row(trial.last, id) for trial, id in zip(planned, ids, strict=True)]
    connection.execute(insert(attempts), rows)
    news = [event_row(campaign_id, now, "trial.planned", _planned_data(trial)) for trial in planned]
    connection.execute(insert(events), news)
    return planned


def room_left(connection: Connection, campaign: Campaign) -> int | None:
    """How many first runs the campaign's budget of trials leaves; None for any number."""
    if (most := campaign.spec.budget.trials) is None:
        return None
    first = trials.c.origin.in_([str(origin) for origin in FIRST_RUNS])
    query = select(func.count()).select_from(trials).where(trials.c.campaign_id == campaign.id, first)
    return max(0, most - (connection.scalar(query) or 0))


def read_trials(
    connection: Connection,
    campaign_id: str,
    *where: ColumnElement[bool],
    limit: int | None = None,
    listed: bool = False,
) -> list[Trial]:
    """Trials of a campaign in the order of their numbers: in three queries, however many there are. listed: without
    what LISTED_COLUMNS leaves out. Raises Unreadable."""
    wanted = select(trials).where(trials.c.campaign_id == campaign_id, *where)
    rows = _rows(connection, wanted.order_by(trials.c.number).limit(limit))
    if not rows:
        return []
    ends = (rows[0]["number"], rows[-1]["number"])
    same = and_(trials.c.campaign_id == campaign_id, trials.c.number.between(*ends), *where)
    times = {} if listed else _step_times(connection, same)
    columns = stored.LISTED_COLUMNS if listed else (*attempts.c, *_OF_MEASUREMENTS)
    by_trial: defaultdict[int, list[Attempt]] = defaultdict(list)
    attempted = (
        select(*columns)
        .join_from(attempts, trials, trials.c.id == attempts.c.trial_id)
        .outerjoin(measurements, measurements.c.attempt_id == attempts.c.id)
        .where(same)
        .order_by(attempts.c.trial_id, attempts.c.number)
    )
    for row in _rows(connection, attempted):
        with reading_row(f"attempt {row['job_name']}"):
            if listed:
                measurement = stored.listed_measurement_of(row)
            else:
                measurement = stored.measurement_of(row, times[row["id"]]) if row["id"] in times else None
            by_trial[row["trial_id"]].append(stored.attempt_of(row, measurement))
    found: list[Trial] = []
    for row in rows:
        with reading_row(f"trial {row['number']} of campaign {campaign_id}"):
            found.append(stored.trial_of(row, by_trial[row["id"]]))
    return found


def unreadable(connection: Connection, campaign_id: str) -> str:
    """What of the campaign this meshtune does not read; empty where it reads all. Raises NotFound."""
    try:
        read_campaign(connection, campaign_id)
        read_trials(connection, campaign_id)
    except Unreadable as error:
        return str(error)
    return ""


def _rows(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    """By the names of the columns."""
    result = connection.execute(query)
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def trials_numbered(
    connection: Connection, campaign_id: str, numbers: Collection[int], *, listed: bool = False
) -> dict[int, Trial]:
    """Those of the trials that there are, by number."""
    numbered = read_trials(connection, campaign_id, trials.c.number.in_(list(numbers)), listed=listed)
    return {trial.number: trial for trial in numbered}


def _step_times(connection: Connection, same: ColumnElement[bool]) -> Mapping[int, list[tuple[bool, float]]]:
    times: defaultdict[int, list[tuple[bool, float]]] = defaultdict(list)
    for attempt_id, warmup, seconds in connection.execute(
        select(steps.c.attempt_id, steps.c.warmup, steps.c.seconds)
        .join(attempts, attempts.c.id == steps.c.attempt_id)
        .join(trials, trials.c.id == attempts.c.trial_id)
        .where(same)
        .order_by(steps.c.attempt_id, steps.c.number)
    ):
        times[attempt_id].append((warmup, seconds))
    return times


def _read_trial(connection: Connection, campaign_id: str, number: int) -> Trial:
    matches = read_trials(connection, campaign_id, trials.c.number == number)
    if not matches:
        raise NotFound(f"campaign {campaign_id} has no trial {number}")
    return matches[0]


def _require_new_plans(
    connection: Connection, campaign_id: str, choices: Sequence[Choice], origin: Origin, round: int
) -> None:
    """Raises AlreadyExists for a plan that comes twice or that the campaign has."""
    confirmation = trials.c.origin == str(Origin.CONFIRMATION)
    alike = and_(confirmation, trials.c.round == round) if origin is Origin.CONFIRMATION else ~confirmation
    query = select(trials.c.plan_key, trials.c.number).where(trials.c.campaign_id == campaign_id, alike)
    taken: dict[str, int] = {key: number for key, number in connection.execute(query)}
    coming: set[str] = set()
    for plan in (choice.plan for choice in choices):
        if plan.key in taken:
            raise AlreadyExists(f"campaign {campaign_id} has the plan {plan.key} already, as trial {taken[plan.key]}")
        if plan.key in coming:
            raise AlreadyExists(f"campaign {campaign_id}: the plan {plan.key} comes twice in one list")
        coming.add(plan.key)


def _planned_attempt(campaign_id: str, trial_number: int, number: int, now: float) -> Attempt:
    name = job_name(campaign_id, trial_number, number)
    return Attempt(number=number, job_name=name, state=TrialState.PLANNED, planned_at=now)


def _last_attempt(connection: Connection, campaign_id: str, number: int) -> Row[Any]:
    """The id, number, state, claimed_at and started_at of the trial's last attempt. Raises NotFound."""
    last: Row[Any] | None = connection.execute(_LAST, {"of": campaign_id, "trial": number}).first()
    if last is None:
        raise NotFound(f"campaign {campaign_id} has no trial {number}")
    return last


def _advance(
    connection: Connection, campaign_id: str, number: int, to: TrialState, values: Mapping[str, Any]
) -> Row[Any]:
    """Move the trial's last attempt on and return the columns that events hold. Raises NotFound, IllegalMove."""
    last = _last_attempt(connection, campaign_id, number)
    state = TrialState(last.state)
    if not state.may_become(to):
        raise IllegalMove(_name(campaign_id, number, last.number), state, to)
    move = update(attempts).where(attempts.c.id == last.id).values(state=str(to), **values).returning(*_IN_EVENTS)
    moved: Row[Any] = connection.execute(move).one()
    return moved


def _name(campaign_id: str, trial: int, attempt: int) -> str:
    return f"trial {trial} of campaign {campaign_id} (attempt {attempt})"


def _planned_data(trial: Trial) -> dict[str, object]:
    data = {**_moved_data(trial.number, trial.last), "plan": trial.plan.key, "origin": str(trial.origin)}
    return data if trial.expectation is None else {**data, "expectation": asdict(trial.expectation)}


def _moved_data(trial: int, attempt: Attempt | Row[Any]) -> dict[str, object]:
    data = {"number": trial, "attempt": attempt.number, "state": str(attempt.state)}
    return {**data, **stored.node_columns(nodes=attempt.nodes)}


def _done_data(trial: int, attempt: Row[Any], outcome: Outcome) -> dict[str, object]:
    data = {**_moved_data(trial, attempt), "verdict": str(outcome.verdict)}
    data |= stored.node_columns(failed_nodes=attempt.failed_nodes)
    if outcome.failure is not None:
        data["failure"] = str(outcome.failure)
    if outcome.measurement is not None:
        data["step_time_s"] = outcome.measurement.step_time_s
        data["tokens_per_s_per_device"] = outcome.measurement.tokens_per_s_per_device
    return data
