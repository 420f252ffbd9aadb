"""What pages of campaigns and trials are filtered and sorted by, and what rankings need of the steps."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

from meshtune.runners.measuring.median_interval import median_interval

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# Attempts whose steps are read at once: a bounded amount of memory, whatever the size of the database.
CHUNK = 1000
MOST_BIGINT = 2**63 - 1

campaigns = sa.table(
    "campaigns",
    sa.column("id", sa.Text()),
    sa.column("spec", sa.JSON()),
    sa.column("model", sa.Text()),
    sa.column("cluster", sa.Text()),
)
measurements = sa.table(
    "measurements",
    sa.column("attempt_id", sa.BigInteger()),
    sa.column("step_time_low_s", sa.Double()),
    sa.column("step_time_high_s", sa.Double()),
    sa.column("peak_memory_bytes", sa.JSON()),
    sa.column("peak_held_bytes", sa.JSON()),
    sa.column("most_memory_bytes", sa.BigInteger()),
    sa.column("most_held_bytes", sa.BigInteger()),
)
steps = sa.table(
    "steps",
    sa.column("attempt_id", sa.BigInteger()),
    sa.column("warmup", sa.Boolean()),
    sa.column("seconds", sa.Double()),
)


def upgrade() -> None:
    for name in ("model", "cluster"):
        op.add_column("campaigns", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    for name in ("step_time_low_s", "step_time_high_s"):
        op.add_column("measurements", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    for name in ("most_memory_bytes", "most_held_bytes"):
        op.add_column("measurements", sa.Column(name, sa.BigInteger()))
    op.create_index("ix_campaigns_state_updated_at", "campaigns", ["state", "updated_at"])
    connection = op.get_bind()
    for id, spec in connection.execute(sa.select(campaigns.c.id, campaigns.c.spec)).all():
        names = {name: _name(spec, name) for name in ("model", "cluster")}
        connection.execute(sa.update(campaigns).where(campaigns.c.id == id).values(names))
    last = -1
    while chunk := _chunk(connection, last):
        _fill(connection, chunk)
        last = chunk[-1].attempt_id


def _name(spec: Any, section: str) -> str:
    named = spec.get(section) if isinstance(spec, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    return name if isinstance(name, str) else ""


def _chunk(connection: sa.Connection, after: int) -> list[sa.Row[Any]]:
    columns = (measurements.c.attempt_id, measurements.c.peak_memory_bytes, measurements.c.peak_held_bytes)
    query = sa.select(*columns).where(measurements.c.attempt_id > after)
    return list(connection.execute(query.order_by(measurements.c.attempt_id).limit(CHUNK)))


def _fill(connection: sa.Connection, chunk: list[sa.Row[Any]]) -> None:
    timed = (
        sa.select(steps.c.attempt_id, steps.c.seconds)
        .where(steps.c.attempt_id.between(chunk[0].attempt_id, chunk[-1].attempt_id), sa.not_(steps.c.warmup))
        .order_by(steps.c.attempt_id)
    )
    found = groupby(connection.execute(timed), key=lambda row: row.attempt_id)
    intervals = {id: median_interval([row.seconds for row in rows]) for id, rows in found}
    rows = [
        {
            "key": row.attempt_id,
            "step_time_low_s": intervals[row.attempt_id].low,
            "step_time_high_s": intervals[row.attempt_id].high,
            "most_memory_bytes": _most(row.peak_memory_bytes),
            "most_held_bytes": _most(row.peak_held_bytes),
        }
        for row in chunk
        if row.attempt_id in intervals
    ]
    if rows:
        connection.execute(sa.update(measurements).where(measurements.c.attempt_id == sa.bindparam("key")), rows)


def _most(peaks: list[int]) -> int | None:
    return None if not peaks else min(max(peaks), MOST_BIGINT)
