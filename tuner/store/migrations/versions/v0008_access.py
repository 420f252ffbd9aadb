"""Tokens, the audit log, idempotency keys and owners."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# SQLite counts only a column of the exact type INTEGER by itself.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # Whose campaigns those from before are, nobody knows: they count for no token.
    op.add_column("campaigns", sa.Column("owner", sa.Text(), nullable=False, server_default=""))
    op.create_index("ix_attempts_planned_at", "attempts", ["planned_at"])
    op.create_table(
        "tokens",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("last_used_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("campaigns", sa.Integer()),
        sa.Column("trials", sa.Integer()),
        sa.Column("device_hours", sa.Double()),
        sa.PrimaryKeyConstraint("name", name="pk_tokens"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
    )
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "idempotency",
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", sa.JSON()),
        sa.Column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("caller", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_at", "idempotency", ["at"])
