"""A plan's measure is the mean of its steps; what nobody can have measured is a crash."""

from collections.abc import Iterator
from itertools import groupby
from math import fsum
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from alembic import op

from meshtune.runners.measuring import mean_interval

revision = "0102"
down_revision = "0100"
branch_labels = None
depends_on = None

LEAST_S, MOST_S, KEPT = 1e-9, 1e9, 10_000
REASON = "what the job left makes no sense: steps must take from 1e-09 to 1e+09 seconds"


def upgrade() -> None:
    with op.batch_alter_table("measurements") as batch:
        batch.add_column(sa.Column("mean_step_time_s", sa.Double()))
    connection = op.get_bind()
    wrong = [{"id": id} for id, times in _steps(connection) if not all(map(_possible, times))]
    for statement in (
        f"UPDATE attempts SET verdict = 'crashed', cause = 'crash', reason = '{REASON}' WHERE id = :id",
        "DELETE FROM steps WHERE attempt_id = :id",
        "DELETE FROM measurements WHERE attempt_id = :id",
    ):
        if wrong:
            connection.execute(sa.text(statement), wrong)
    means = [
        {"id": id, "mean": fsum(times) / len(times), "low": interval.low, "high": interval.high}
        for id, all_times in _steps(connection, "WHERE NOT warmup")
        for times in [all_times[-KEPT:]]
        for interval in [mean_interval(times)]
    ]
    if means:
        changed = "mean_step_time_s = :mean, step_time_low_s = :low, step_time_high_s = :high"
        connection.execute(sa.text(f"UPDATE measurements SET {changed} WHERE attempt_id = :id"), means)
    attempts = sa.table("attempts", sa.column("id"), sa.column("verdict"), sa.column("partial", sa.JSON()))
    pruned = connection.execute(sa.select(attempts.c.id, attempts.c.partial).where(attempts.c.verdict == "pruned"))
    for id, partial in pruned.all():
        if partial and not all(map(_possible, (*partial["step_times_s"], *partial["warmup_times_s"]))):
            connection.execute(sa.update(attempts).where(attempts.c.id == id).values(partial=sa.null()))
    with op.batch_alter_table("measurements") as batch:
        batch.alter_column("mean_step_time_s", existing_type=sa.Double(), nullable=False)


def _steps(connection: Any, where: str = "") -> Iterator[tuple[int, list[float]]]:
    rows = connection.execute(sa.text(f"SELECT attempt_id, seconds FROM steps {where} ORDER BY attempt_id, number"))
    for id, of_attempt in groupby(rows, key=itemgetter(0)):
        yield id, [seconds for _, seconds in of_attempt]


def _possible(seconds: float) -> bool:
    return LEAST_S <= seconds <= MOST_S
