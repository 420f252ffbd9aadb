"""Campaigns, trials, attempts, measurements, steps and events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite counts only a column of the exact type INTEGER by itself.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("combinations", sa.BigInteger(), nullable=False),
        sa.Column("legal", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_campaigns"),
    )
    op.create_index("ix_campaigns_created_at_id", "campaigns", ["created_at", "id"])
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
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_trials_campaign_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("campaign_id", "number", name="uq_trials_campaign_id_number"),
        sa.UniqueConstraint("campaign_id", "plan_key", name="uq_trials_campaign_id_plan_key"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("trial_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("failed_rank", sa.Integer(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=False),
        sa.Column("planned_at", sa.Double(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_attempts_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("job_name", name="uq_attempts_job_name"),
        sa.UniqueConstraint("trial_id", "number", name="uq_attempts_trial_id_number"),
    )
    op.create_table(
        "measurements",
        sa.Column("attempt_id", ID, autoincrement=False, nullable=False),
        sa.Column("tokens_per_step", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("model_flops_per_token", sa.Double(), nullable=True),
        sa.Column("median_step_time_s", sa.Double(), nullable=False),
        sa.Column("first_losses", sa.JSON(), nullable=False),
        sa.Column("peak_memory_bytes", sa.JSON(), nullable=False),
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
