"""Why attempts failed, on which nodes they ran, and what quotas count."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Attempts from before say neither their nodes nor more of a failure than its verdict.
    op.add_column("attempts", sa.Column("cause", sa.Text()))
    for name in ("avoid", "nodes", "failed_nodes"):
        op.add_column("attempts", sa.Column(name, sa.JSON()))
    op.add_column("attempts", sa.Column("claimed_at", sa.Double()))
    op.create_index("ix_attempts_finished_at", "attempts", ["finished_at"])
    op.add_column("campaigns", sa.Column("running_since", sa.Double(), nullable=False, server_default="0"))
    op.add_column("campaigns", sa.Column("devices", sa.Integer(), nullable=False, server_default="0"))
    campaigns = sa.table(
        "campaigns",
        sa.column("id", sa.Text()),
        sa.column("spec", sa.JSON()),
        sa.column("created_at", sa.Double()),
        sa.column("running_since", sa.Double()),
        sa.column("devices", sa.Integer()),
    )
    connection = op.get_bind()
    connection.execute(sa.update(campaigns).values(running_since=campaigns.c.created_at))
    for id, spec in connection.execute(sa.select(campaigns.c.id, campaigns.c.spec)).all():
        devices = _devices(spec)
        connection.execute(sa.update(campaigns).where(campaigns.c.id == id).values(devices=devices))


def _devices(spec: Any) -> int:
    """0 for a spec that does not say, as then no job of it can be sent either."""
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    if not isinstance(cluster, dict):
        return 0
    nodes, devices_per_node = cluster.get("nodes"), cluster.get("devices_per_node")
    return nodes * devices_per_node if isinstance(nodes, int) and isinstance(devices_per_node, int) else 0
