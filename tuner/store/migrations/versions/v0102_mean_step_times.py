"""A plan's measure is the mean of its steps; what nobody can have measured is a crash."""

from collections.abc import Callable
from itertools import chain, groupby
from math import exp, fsum, sqrt
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from alembic import op

from meshtune.runners.measuring import two_sided_quantile

revision = "0102"
down_revision = "0100"
branch_labels = None
depends_on = None

LEAST_S, MOST_S, KEPT = 1e-9, 1e9, 10_000
REASON = "what the job left makes no sense: nobody can have measured such numbers"
FLOPS = ("model_flops_per_token", "peak_flops_per_device")
LEAST_FLOPS, MOST_FLOPS = 1e-6, 1e30
OTHERS = f"""SELECT attempt_id FROM measurements
WHERE attempt_id NOT IN (SELECT attempt_id FROM steps WHERE NOT warmup) OR compile_s > {MOST_S} OR devices > 2147483647
OR {" OR ".join(f"{name} NOT BETWEEN {LEAST_FLOPS} AND {MOST_FLOPS}" for name in FLOPS)}"""
NEW = "mean_step_time_s = :mean, step_time_low_s = :low, step_time_high_s = :high"
CRASH = f"UPDATE attempts SET verdict = 'crashed', cause = 'crash', reason = '{REASON}' WHERE id = :id"


def upgrade() -> None:
    with op.batch_alter_table("measurements") as batch:
        batch.add_column(sa.Column("mean_step_time_s", sa.Double()))
    connection = op.get_bind()
    wrong, means = [{"id": id} for id in connection.scalars(sa.text(OTHERS))], []
    rows = connection.execute(sa.text("SELECT attempt_id, warmup, seconds FROM steps ORDER BY attempt_id, number"))
    for id, steps in groupby(rows, key=itemgetter(0)):
        times = [(warmup, seconds) for _, warmup, seconds in steps]
        if not all(_possible(seconds) for _, seconds in times):
            wrong.append({"id": id})
        elif timed := [seconds for warmup, seconds in times if not warmup][-KEPT:]:
            means.append({"id": id, **_mean(timed)})
    deletions = (f"DELETE FROM {table} WHERE attempt_id = :id" for table in ("steps", "measurements"))
    changes = [(CRASH, wrong), *((each, wrong) for each in deletions)]
    for statement, values in [*changes, (f"UPDATE measurements SET {NEW} WHERE attempt_id = :id", means)]:
        if values:
            connection.execute(sa.text(statement), values)
    attempts = sa.table("attempts", sa.column("id"), sa.column("verdict"), sa.column("partial", sa.JSON()))
    pruned = connection.execute(sa.select(attempts.c.id, attempts.c.partial).where(attempts.c.verdict == "pruned"))
    for id, partial in pruned.all():
        if partial and not _holds(_sound, partial):
            connection.execute(sa.update(attempts).where(attempts.c.id == id).values(partial=sa.null()))
    connection.execute(sa.text("UPDATE attempts SET failed_rank = NULL WHERE failed_rank > 2147483647"))
    measured = sa.table("measurements", sa.column("attempt_id"), sa.column("profile", sa.JSON()))
    for id, profile in connection.execute(sa.select(measured)).all():
        if profile and not _holds(_short, profile):
            connection.execute(sa.update(measured).where(measured.c.attempt_id == id).values(profile=sa.null()))
    with op.batch_alter_table("measurements") as batch:
        batch.alter_column("mean_step_time_s", existing_type=sa.Double(), nullable=False)


def _mean(timed: list[float]) -> dict[str, float]:
    """With Student's 95 % interval, the lower end as near as the other where both are near."""
    count, mean = len(timed), fsum(timed) / len(timed)
    deviation = sqrt(fsum((one - mean) ** 2 for one in timed) / max(1, count - 1))
    reach = two_sided_quantile(0.95, min(count - 1, 1000)) * deviation / sqrt(count) if count > 1 else 0.0
    return {"mean": mean, "low": mean * exp(-reach / mean), "high": mean + reach}


def _holds(check: Callable[[Any], bool], document: Any) -> bool:
    """False too of a document that is another's."""
    try:
        return check(document)
    except (KeyError, TypeError, AttributeError):
        return False


def _sound(partial: Any) -> bool:
    flops = [partial[name] for name in FLOPS if partial[name] is not None]
    times = (*partial["step_times_s"], *partial["warmup_times_s"])
    fit = all(map(_possible, times)) and all(LEAST_FLOPS <= each <= MOST_FLOPS for each in flops)
    return fit and (partial["compile_s"] or 0) <= MOST_S and (not partial["profile"] or _short(partial["profile"]))


def _short(profile: Any) -> bool:
    """Whether all times are of at most MOST_S, and each rank has some of its own."""
    parts = (each.values() for name in ("parts_s", "waiting_s") for each in profile[name])
    times = chain([profile["step_time_s"]], *parts, *profile["own_times_s"])
    return all(profile["own_times_s"]) and all(abs(each) <= MOST_S for each in times)


def _possible(seconds: Any) -> bool:
    return isinstance(seconds, (int, float)) and LEAST_S <= seconds <= MOST_S
