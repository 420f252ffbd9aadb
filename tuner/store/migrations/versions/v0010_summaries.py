"""What lists show of campaigns that are over, kept so that a service that starts need not count their trials again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "summaries",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("event", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", name="pk_summaries"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_summaries_campaign_id", ondelete="CASCADE"),
    )
