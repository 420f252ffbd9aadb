"""Memory held, the device's peak, the profile by part, and what pruned jobs had measured."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("partial", sa.JSON()))
    op.add_column("measurements", sa.Column("peak_flops_per_device", sa.Double()))
    # Measurements from before know nothing of it.
    op.add_column("measurements", sa.Column("peak_held_bytes", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("measurements", sa.Column("profile", sa.JSON()))
