"""Answers about campaigns that are over, as the REST API gives them, kept so that a service that starts has them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("event", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", "question", name="pk_answers"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_answers_campaign_id", ondelete="CASCADE"),
    )
