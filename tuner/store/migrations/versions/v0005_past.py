"""The software that measurements hold for, by what campaigns are found again, and what they learn from."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Measurements from before do not tell their software, and campaigns from before learnt from none.
    op.add_column("measurements", sa.Column("software", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("campaigns", sa.Column("lessons", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("campaigns", sa.Column("device", sa.Text(), nullable=False, server_default=""))
    op.add_column("campaigns", sa.Column("workload", sa.Text(), nullable=False, server_default=""))
    campaigns = sa.table(
        "campaigns",
        sa.column("id", sa.Text()),
        sa.column("spec", sa.JSON()),
        sa.column("device", sa.Text()),
        sa.column("workload", sa.Text()),
    )
    connection = op.get_bind()
    for id, spec in connection.execute(sa.select(campaigns.c.id, campaigns.c.spec)).all():
        found = {"device": _at(spec, "cluster", "device", "name"), "workload": _at(spec, "workload", "kind")}
        connection.execute(sa.update(campaigns).where(campaigns.c.id == id).values(found))
    op.create_index(
        "ix_campaigns_device_workload_created_at_id", "campaigns", ["device", "workload", "created_at", "id"]
    )


def _at(spec: Any, *path: str) -> str:
    """The text at a path inside a spec; empty where it has none such, as it then names nothing to be found by."""
    for key in path:
        spec = spec.get(key) if isinstance(spec, dict) else None
    return spec if isinstance(spec, str) else ""
