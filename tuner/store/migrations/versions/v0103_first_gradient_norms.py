"""The gradient norms of the first steps; jobs of earlier versions told none."""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("measurements") as batch:
        batch.add_column(sa.Column("first_gradient_norms", sa.JSON(), nullable=False, server_default="[]"))
