"""The tables of meshtune 0.1.0, the first release. Schemas 0001 to 0011 were those of its development."""

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

# SQLite counts only a column of the exact type INTEGER by itself.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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
        "campaigns",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("running_since", sa.Double(), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("combinations", sa.BigInteger(), nullable=False),
        sa.Column("legal", sa.BigInteger(), nullable=False),
        sa.Column("search_ended", sa.Text(), nullable=False),
        sa.Column("chance_left", sa.Double()),
        sa.Column("lessons", sa.JSON(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_campaigns"),
    )
    op.create_index("ix_campaigns_created_at_id", "campaigns", ["created_at", "id"])
    op.create_index(
        "ix_campaigns_device_workload_created_at_id", "campaigns", ["device", "workload", "created_at", "id"]
    )
    op.create_index("ix_campaigns_state_updated_at", "campaigns", ["state", "updated_at"])
    op.create_table(
        "holders",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("serves", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_holders"),
    )
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
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_events_campaign_id"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_campaign_id_id", "events", ["campaign_id", "id"])
    op.create_table(
        "leases",
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("vanished_epoch", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_leases_campaign_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("campaign_id", name="pk_leases"),
    )
    op.create_index("ix_leases_holder", "leases", ["holder"])
    op.create_table(
        "trials",
        sa.Column("id", ID, nullable=False),
        sa.Column("campaign_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("plan_key", sa.Text(), nullable=False),
        sa.Column("tp", sa.Integer(), nullable=False),
        sa.Column("pp", sa.Integer(), nullable=False),
        sa.Column("dp", sa.Integer(), nullable=False),
        sa.Column("cp", sa.Integer(), nullable=False),
        sa.Column("ep", sa.Integer(), nullable=False),
        sa.Column("vpp", sa.Integer(), nullable=False),
        sa.Column("micro_batch_size", sa.Integer(), nullable=False),
        sa.Column("grad_accum_steps", sa.Integer(), nullable=False),
        sa.Column("zero_stage", sa.Integer(), nullable=False),
        sa.Column("recompute", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("sequence_parallel", sa.Boolean(), nullable=False),
        sa.Column("recompute_interval", sa.Integer(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("expectation", sa.JSON()),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_trials_campaign_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("campaign_id", "number", name="uq_trials_campaign_id_number"),
        sa.UniqueConstraint("campaign_id", "plan_key", "origin", name="uq_trials_campaign_id_plan_key_origin"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("trial_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text()),
        sa.Column("phase", sa.Text()),
        sa.Column("failed_rank", sa.Integer()),
        sa.Column("avoid", sa.JSON()),
        sa.Column("nodes", sa.JSON()),
        sa.Column("failed_nodes", sa.JSON()),
        sa.Column("planned_at", sa.Double(), nullable=False),
        sa.Column("claimed_at", sa.Double()),
        sa.Column("sending_epoch", sa.BigInteger()),
        sa.Column("submitted_at", sa.Double()),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("partial", sa.JSON()),
        sa.Column("log_tail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_attempts_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("job_name", name="uq_attempts_job_name"),
        sa.UniqueConstraint("trial_id", "number", name="uq_attempts_trial_id_number"),
    )
    op.create_index("ix_attempts_finished_at", "attempts", ["finished_at"])
    op.create_index("ix_attempts_planned_at", "attempts", ["planned_at"])
    op.create_table(
        "measurements",
        sa.Column("attempt_id", ID, autoincrement=False, nullable=False),
        sa.Column("tokens_per_step", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("model_flops_per_token", sa.Double()),
        sa.Column("peak_flops_per_device", sa.Double()),
        sa.Column("median_step_time_s", sa.Double(), nullable=False),
        sa.Column("step_time_low_s", sa.Double(), nullable=False),
        sa.Column("step_time_high_s", sa.Double(), nullable=False),
        sa.Column("max_memory_bytes", sa.BigInteger()),
        sa.Column("max_held_bytes", sa.BigInteger()),
        sa.Column("first_losses", sa.JSON(), nullable=False),
        sa.Column("software", sa.JSON(), nullable=False),
        sa.Column("peak_memory_bytes", sa.JSON(), nullable=False),
        sa.Column("peak_held_bytes", sa.JSON(), nullable=False),
        sa.Column("profile", sa.JSON()),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_measurements_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_measurements"),
    )
    op.create_table(
        "steps",
        sa.Column("attempt_id", ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("warmup", sa.Boolean(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_steps_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", "number", name="pk_steps"),
    )
