"""Copies a campaign within its database, all of its rows by SQL: a hundred times as fast as values could be written.

A copy has an id, a name, times and step times of its own; all else is its source's, also what events and profiles say.
What a service adds for itself, such as leases and summaries, is not copied: it adds that to copies, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, func, insert, literal, select, text

from meshtune.tuner.store import Store
from meshtune.tuner.store.campaigns import read_campaign
from meshtune.tuner.store.rows import campaign_row
from meshtune.tuner.store.tables import attempts, campaigns, events, measurements, spec_texts, steps, trials

# In the order in which their rows refer to each other. Of the counted ones the database gives the ids.
COPIED = (campaigns, spec_texts, trials, attempts, measurements, steps, events)
COUNTED = (trials, attempts, events)
TIMES = (
    attempts.c.planned_at,
    attempts.c.claimed_at,
    attempts.c.submitted_at,
    attempts.c.started_at,
    attempts.c.finished_at,
    events.c.at,
)
STEP_TIMES = (
    measurements.c.mean_step_time_s,
    measurements.c.median_step_time_s,
    measurements.c.step_time_low_s,
    measurements.c.step_time_high_s,
    steps.c.seconds,
)


def copy_campaign(connection: Connection, source: str, id: str, *, name: str, later_s: float, slower: float) -> None:
    """Write the campaign `id`, which happened so many seconds after `source` and whose steps take so many times as
    long. The source was written in one transaction: no other campaign has ids between its own."""
    _copy_row(connection, source, id, name, later_s)
    of_trials = _between(connection, trials, trials.c.campaign_id == source)
    of_attempts = _between(connection, attempts, attempts.c.trial_id.between(*of_trials))
    of_events = _between(connection, events, events.c.campaign_id == source)
    trials_on = _next_id(connection, trials) - of_trials[0]
    attempts_on = _next_id(connection, attempts) - of_attempts[0]
    events_on = _next_id(connection, events) - of_events[0]
    changes: dict[ColumnElement[Any], Any] = {
        trials.c.id: trials.c.id + trials_on,
        trials.c.campaign_id: literal(id),
        attempts.c.id: attempts.c.id + attempts_on,
        attempts.c.trial_id: attempts.c.trial_id + trials_on,
        attempts.c.job_name: func.replace(attempts.c.job_name, source, id),
        attempts.c.job_id: func.replace(attempts.c.job_id, source, id),
        measurements.c.attempt_id: measurements.c.attempt_id + attempts_on,
        steps.c.attempt_id: steps.c.attempt_id + attempts_on,
        events.c.id: events.c.id + events_on,
        events.c.campaign_id: literal(id),
        **{column: column + later_s for column in TIMES},
        **{column: column * slower for column in STEP_TIMES},
    }
    for key, among in (
        (trials.c.id, of_trials),
        (attempts.c.id, of_attempts),
        (measurements.c.attempt_id, of_attempts),
        (steps.c.attempt_id, of_attempts),
        (events.c.id, of_events),
    ):
        rows = select(*(changes.get(column, column) for column in key.table.columns)).where(key.between(*among))
        connection.execute(insert(key.table).from_select(list(key.table.columns), rows))
    written = select(literal(id), spec_texts.c.text).where(spec_texts.c.campaign_id == source)
    connection.execute(insert(spec_texts).from_select(list(spec_texts.columns), written))


def settle(store: Store) -> None:
    """Let the database count its ids on from the copies' own, and know its tables as one does that grew slowly."""
    with store._database.writing() as connection:
        if connection.dialect.name == "postgresql":
            for table in COUNTED:
                counter = func.pg_get_serial_sequence(table.name, "id")
                connection.execute(select(func.setval(counter, _next_id(connection, table), False)))
            connection.execute(text("ANALYZE"))


def stored_bytes(store: Store) -> int:
    """What the database takes on its disk, less what is not in its tables yet."""
    with store._database.reading() as connection:
        if connection.dialect.name == "postgresql":
            query = text("SELECT pg_database_size(current_database())")
        else:
            query = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        stored: int = connection.execute(query).scalar_one()
        return stored


def _copy_row(connection: Connection, source: str, id: str, name: str, later_s: float) -> None:
    found = read_campaign(connection, source)
    copy = replace(
        found,
        id=id,
        spec=replace(found.spec, name=name),
        created_at=found.created_at + later_s,
        updated_at=found.updated_at + later_s,
        running_since=found.running_since + later_s,
    )
    connection.execute(insert(campaigns), campaign_row(copy))


def _between(connection: Connection, table: Table, of_campaign: ColumnElement[bool]) -> tuple[int, int]:
    """The first and the last id of a campaign's rows."""
    # Counted, too: else PostgreSQL looks for the last one from the end of the table.
    query = select(func.min(table.c.id), func.max(table.c.id), func.count()).where(of_campaign)
    first, last, number = connection.execute(query).one()
    if last - first + 1 != number:
        raise ValueError(f"other rows lie between the {number} {table.name} from {first} to {last}")
    return first, last


def _next_id(connection: Connection, table: Table) -> int:
    newest: int = connection.scalar(select(func.max(table.c.id))) or 0
    return newest + 1
