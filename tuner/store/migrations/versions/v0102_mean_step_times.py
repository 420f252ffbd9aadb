"""A plan's measure is the mean of its steps; what nobody can have measured is a crash."""

from itertools import groupby
from math import exp, fsum, sqrt
from operator import itemgetter

import sqlalchemy as sa
from alembic import op

from meshtune.runners.measuring import two_sided_quantile

revision = "0102"
down_revision = "0100"
branch_labels = None
depends_on = None

LEAST_S, MOST_S, KEPT = 1e-9, 1e9, 10_000
REASON = "what the job left makes no sense: steps must take from 1e-09 to 1e+09 seconds"
NEW = "mean_step_time_s = :mean, step_time_low_s = :low, step_time_high_s = :high"
CRASH = f"UPDATE attempts SET verdict = 'crashed', cause = 'crash', reason = '{REASON}' WHERE id = :id"


def upgrade() -> None:
    with op.batch_alter_table("measurements") as batch:
        batch.add_column(sa.Column("mean_step_time_s", sa.Double()))
    connection = op.get_bind()
    wrong, means = [], []
    rows = connection.execute(sa.text("SELECT attempt_id, warmup, seconds FROM steps ORDER BY attempt_id, number"))
    for id, steps in groupby(rows, key=itemgetter(0)):
        times = [(warmup, seconds) for _, warmup, seconds in steps]
        if not all(_possible(seconds) for _, seconds in times):
            wrong.append({"id": id})
            continue
        timed = [seconds for warmup, seconds in times if not warmup][-KEPT:]
        means.append({"id": id, **_mean(timed)})
    deletions = (f"DELETE FROM {table} WHERE attempt_id = :id" for table in ("steps", "measurements"))
    changes = [(CRASH, wrong), *((each, wrong) for each in deletions)]
    for statement, values in [*changes, (f"UPDATE measurements SET {NEW} WHERE attempt_id = :id", means)]:
        if values:
            connection.execute(sa.text(statement), values)
    attempts = sa.table("attempts", sa.column("id"), sa.column("verdict"), sa.column("partial", sa.JSON()))
    pruned = connection.execute(sa.select(attempts.c.id, attempts.c.partial).where(attempts.c.verdict == "pruned"))
    for id, partial in pruned.all():
        if partial and not all(map(_possible, (*partial["step_times_s"], *partial["warmup_times_s"]))):
            connection.execute(sa.update(attempts).where(attempts.c.id == id).values(partial=sa.null()))
    with op.batch_alter_table("measurements") as batch:
        batch.alter_column("mean_step_time_s", existing_type=sa.Double(), nullable=False)


def _mean(timed: list[float]) -> dict[str, float]:
    """With Student's 95 % interval, the lower end as near as the other where both are near."""
    count, mean = len(timed), fsum(timed) / len(timed)
    deviation = sqrt(fsum((one - mean) ** 2 for one in timed) / max(1, count - 1))
    reach = two_sided_quantile(0.95, min(count - 1, 1000)) * deviation / sqrt(count) if count > 1 else 0.0
    return {"mean": mean, "low": mean * exp(-reach / mean), "high": mean + reach}


def _possible(seconds: float) -> bool:
    return LEAST_S <= seconds <= MOST_S
