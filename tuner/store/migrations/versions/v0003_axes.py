"""The plan's newer fields: sequence parallelism, which layers are recomputed, the kind of context parallelism."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Trials from before ran what the defaults say.
    op.add_column("trials", sa.Column("sequence_parallel", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("trials", sa.Column("recompute_interval", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("trials", sa.Column("context", sa.Text(), nullable=False, server_default="all_gather"))
