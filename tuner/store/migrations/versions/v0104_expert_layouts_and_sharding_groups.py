"""Two axes more of a plan: the experts' tensor parallel degree, and the group that ZeRO shards over; 0 before."""

import sqlalchemy as sa
from alembic import op

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("trials") as batch:
        for name in ("etp", "zero_group"):
            batch.add_column(sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
