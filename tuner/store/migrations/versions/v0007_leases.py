"""Which process drives a campaign."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "holders",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("serves", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_holders"),
    )
    op.create_table(
        "leases",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("vanished_epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", name="pk_leases"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_leases_campaign_id", ondelete="CASCADE"),
    )
    op.create_index("ix_leases_holder", "leases", ["holder"])
    op.add_column("attempts", sa.Column("sending_epoch", sa.BigInteger()))
