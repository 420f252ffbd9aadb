"""The tables of meshtune 0.1.0, the first release. Schemas 0001 to 0011 were those of its development."""

from typing import Any

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
        *_required(ID, "id"),
        *_required(sa.Double(), "at"),
        *_required(sa.Text(), "token", "action", "object", "outcome", "detail"),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "calibrations",
        *_required(sa.Text(), "campaign"),
        *_required(sa.Double(), "created_at"),
        *_required(sa.Text(), "device", "workload", "program", "framework", "dtype", "version", "model", "cluster"),
        *_required(sa.Integer(), "devices", "trials"),
        *_required(sa.Text(), "owner", "project"),
        *_required(sa.JSON(), "document"),
        sa.PrimaryKeyConstraint("campaign", name="pk_calibrations"),
    )
    op.create_index(
        "ix_calibrations_device_framework_created_at", "calibrations", ["device", "framework", "created_at"]
    )
    op.create_table(
        "campaigns",
        *_required(sa.Text(), "id", "name"),
        *_required(sa.JSON(), "spec"),
        *_required(sa.Text(), "state", "reason"),
        *_required(sa.Double(), "created_at", "updated_at", "running_since", "elapsed_s"),
        *_required(sa.BigInteger(), "combinations", "legal"),
        *_required(sa.Text(), "search_ended"),
        *_optional(sa.Double(), "chance_left"),
        *_required(sa.JSON(), "lessons"),
        *_required(sa.Text(), "owner", "project"),
        *_required(sa.Integer(), "devices"),
        *_required(sa.Text(), "device", "workload", "model", "cluster", "tags", "notes"),
        sa.PrimaryKeyConstraint("id", name="pk_campaigns"),
    )
    op.create_index("ix_campaigns_created_at_id", "campaigns", ["created_at", "id"])
    op.create_index(
        "ix_campaigns_device_workload_created_at_id", "campaigns", ["device", "workload", "created_at", "id"]
    )
    op.create_index("ix_campaigns_owner_created_at_id", "campaigns", ["owner", "created_at", "id"])
    op.create_index("ix_campaigns_project_created_at_id", "campaigns", ["project", "created_at", "id"])
    op.create_index("ix_campaigns_state_updated_at", "campaigns", ["state", "updated_at"])
    op.create_table(
        "holders",
        *_required(sa.Text(), "name"),
        *_required(sa.Double(), "expires_at"),
        *_required(sa.Boolean(), "serves"),
        sa.PrimaryKeyConstraint("name", name="pk_holders"),
    )
    op.create_table(
        "idempotency",
        *_required(sa.Text(), "caller", "key", "fingerprint", "holder"),
        *_required(sa.Double(), "at"),
        *_optional(sa.Text(), "campaign_id"),
        *_optional(sa.Integer(), "status"),
        *_optional(sa.JSON(), "headers"),
        *_optional(sa.LargeBinary(), "body"),
        sa.PrimaryKeyConstraint("caller", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_at", "idempotency", ["at"])
    op.create_table(
        "probes",
        *_required(sa.Integer(), "id"),
        *_required(sa.BigInteger(), "number"),
        sa.PrimaryKeyConstraint("id", name="pk_probes"),
    )
    op.create_table(
        "tokens",
        *_required(sa.Text(), "name", "sha256"),
        *_required(sa.JSON(), "scopes", "projects"),
        *_required(sa.Double(), "created_at"),
        *_optional(sa.Double(), "expires_at", "last_used_at", "revoked_at"),
        *_optional(sa.Integer(), "campaigns", "trials"),
        *_optional(sa.Double(), "device_hours"),
        sa.PrimaryKeyConstraint("name", name="pk_tokens"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
    )
    op.create_table(
        "events",
        *_required(ID, "id"),
        *_required(sa.Text(), "campaign_id"),
        *_required(sa.Double(), "at"),
        *_required(sa.Text(), "kind"),
        *_required(sa.JSON(), "data"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_events_campaign_id"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_campaign_id_id", "events", ["campaign_id", "id"])
    op.create_table(
        "leases",
        *_required(sa.Text(), "campaign_id", "holder"),
        *_required(sa.BigInteger(), "epoch", "vanished_epoch"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_leases_campaign_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("campaign_id", name="pk_leases"),
    )
    op.create_index("ix_leases_holder", "leases", ["holder"])
    op.create_table(
        "spec_texts",
        *_required(sa.Text(), "campaign_id", "text"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_spec_texts_campaign_id"),
        sa.PrimaryKeyConstraint("campaign_id", name="pk_spec_texts"),
    )
    stages = ("vpp", "first_stage_less_layers", "last_stage_less_layers")
    sizes = ("tp", "pp", "dp", "cp", "ep", *stages, "micro_batch_size", "grad_accum_steps", "zero_stage")
    op.create_table(
        "trials",
        *_required(ID, "id"),
        *_required(sa.Text(), "campaign_id"),
        *_required(sa.Integer(), "number"),
        *_required(sa.Text(), "origin", "plan_key"),
        *_required(sa.Integer(), *sizes),
        *_required(sa.Text(), "recompute", "schedule"),
        *_required(sa.Boolean(), "sequence_parallel"),
        *_required(sa.Integer(), "recompute_interval"),
        *_required(sa.Text(), "context"),
        *_required(sa.JSON(), "knobs"),
        *_optional(sa.JSON(), "expectation"),
        *_required(sa.Integer(), "round"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_trials_campaign_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("campaign_id", "number", name="uq_trials_campaign_id_number"),
        sa.UniqueConstraint(
            *("campaign_id", "plan_key", "origin", "round"), name="uq_trials_campaign_id_plan_key_origin_round"
        ),
    )
    op.create_table(
        "attempts",
        *_required(ID, "id", "trial_id"),
        *_required(sa.Integer(), "number"),
        *_required(sa.Text(), "job_name"),
        *_optional(sa.Text(), "job_id"),
        *_required(sa.Text(), "state"),
        *_optional(sa.Text(), "verdict"),
        *_required(sa.Text(), "reason", "wait"),
        *_optional(sa.Text(), "cause", "phase"),
        *_optional(sa.Integer(), "failed_rank"),
        *_optional(sa.JSON(), "avoid", "nodes", "failed_nodes"),
        *_required(sa.Double(), "planned_at"),
        *_optional(sa.Double(), "claimed_at"),
        *_optional(sa.BigInteger(), "sending_epoch"),
        *_optional(sa.Double(), "submitted_at", "started_at", "finished_at"),
        *_required(sa.Double(), "running_s"),
        *_optional(sa.JSON(), "partial"),
        *_required(sa.Text(), "log_tail"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_attempts_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("job_name", name="uq_attempts_job_name"),
        sa.UniqueConstraint("trial_id", "number", name="uq_attempts_trial_id_number"),
    )
    op.create_index("ix_attempts_finished_at", "attempts", ["finished_at"])
    op.create_index("ix_attempts_planned_at", "attempts", ["planned_at"])
    op.create_table(
        "measurements",
        *_required(ID, "attempt_id", autoincrement=False),
        *_required(sa.BigInteger(), "tokens_per_step"),
        *_required(sa.Integer(), "devices"),
        *_optional(sa.Double(), "model_flops_per_token", "peak_flops_per_device", "compile_s"),
        *_required(sa.Double(), "median_step_time_s", "step_time_low_s", "step_time_high_s"),
        *_optional(sa.BigInteger(), "max_memory_bytes", "max_held_bytes"),
        *_required(
            sa.JSON(), "first_losses", "software", "peak_memory_bytes", "peak_held_bytes", "attention_kernels", "knobs"
        ),
        *_required(sa.JSON(), "hardware"),
        *_optional(sa.JSON(), "profile"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_measurements_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_measurements"),
    )
    op.create_table(
        "steps",
        *_required(ID, "attempt_id", autoincrement=False),
        *_required(sa.Integer(), "number", autoincrement=False),
        *_required(sa.Boolean(), "warmup"),
        *_required(sa.Double(), "seconds"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_steps_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", "number", name="pk_steps"),
    )


def _required(kind: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False, **options) for name in names]


def _optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]
