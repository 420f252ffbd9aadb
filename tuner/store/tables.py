"""The tables: one row per campaign, trial, attempt, measurement, step and event. Layouts are columns, open to SQL.

Rows refer to each other by their ids; `(campaign_id, number)` and `job_name` are the names that the outside uses.
The schema of a database is made by `migrations`; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from meshtune.search_spaces.plan import AXES


class PlainText(TypeDecorator[str]):
    """Text that every database takes: what none can hold becomes U+FFFD, in rows and in look-ups alike.

    Logs of crashed jobs do hold such things: PostgreSQL refuses NUL, and both refuse the lone surrogates that
    decoding with "surrogateescape" leaves.
    """

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return value.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# SQLite counts only a column of the exact type INTEGER by itself.
_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _required(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]


# JSON, not JSONB: kept as written, so that a spec comes back exactly and escaped NULs are taken.
campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", PlainText, primary_key=True),
    *_required(PlainText, "name"),
    *_required(sa.JSON, "spec"),
    *_required(PlainText, "state", "reason"),
    *_required(sa.Double, "created_at", "updated_at", "running_since", "elapsed_s"),
    *_required(sa.BigInteger, "combinations", "legal"),
    *_required(PlainText, "search_ended"),
    *_optional(sa.Double, "chance_left"),
    *_required(sa.JSON, "lessons"),
    # The name of the token that created it, empty for the command line; and of its project, empty for none.
    *_required(PlainText, "owner", "project"),
    # From the spec: what later campaigns look for, and what quotas count.
    *_required(sa.Integer, "devices"),
    *_required(PlainText, "device", "workload"),
    # From the spec, for pages of campaigns: the names of its model and its cluster.
    *_required(PlainText, "model", "cluster"),
    # By people. tags: words, with a space before and after each; empty for none.
    *_required(PlainText, "tags", "notes"),
    sa.Index(None, "created_at", "id"),
    sa.Index(None, "device", "workload", "created_at", "id"),
    sa.Index(None, "owner", "created_at", "id"),
    sa.Index(None, "project", "created_at", "id"),
    sa.Index(None, "state", "updated_at"),
)

# Of campaigns whose spec came as a text: as it was sent.
spec_texts = sa.Table(
    "spec_texts",
    metadata,
    sa.Column("campaign_id", PlainText, sa.ForeignKey("campaigns.id"), primary_key=True),
    *_required(PlainText, "text"),
)

# Of an axis of the plan, by what its values are; words are text.
_PLAN_TYPES: Mapping[type, Any] = {int: sa.Integer, bool: sa.Boolean}

trials = sa.Table(
    "trials",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("campaign_id", PlainText, sa.ForeignKey("campaigns.id"), nullable=False),
    *_required(sa.Integer, "number"),
    *_required(PlainText, "origin", "plan_key"),
    *(sa.Column(axis.name, _PLAN_TYPES.get(axis.kind, PlainText), nullable=False) for axis in AXES),
    # Of the active knobs, by name.
    *_required(sa.JSON, "knobs"),
    *_optional(sa.JSON, "expectation"),
    # Of second runs, from 1 on; else 0.
    *_required(sa.Integer, "round"),
    # The index of this constraint is the one for "the trials of a campaign", too.
    sa.UniqueConstraint("campaign_id", "number"),
    # With the origin and the round: confirmations repeat a plan.
    sa.UniqueConstraint("campaign_id", "plan_key", "origin", "round"),
)

# How many devices a trial's job holds.
TRIAL_DEVICES = trials.c.tp * trials.c.pp * trials.c.cp * trials.c.dp

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("trial_id", _Id, sa.ForeignKey("trials.id"), nullable=False),
    *_required(sa.Integer, "number"),
    *_required(PlainText, "job_name"),
    *_optional(PlainText, "job_id"),
    *_required(PlainText, "state"),
    *_optional(PlainText, "verdict"),
    # wait: why it has not started; empty where it has, or nobody said.
    *_required(PlainText, "reason", "wait"),
    # Where somebody named one; else it is the verdict's own.
    *_optional(PlainText, "cause", "phase"),
    *_optional(sa.Integer, "failed_rank"),
    # Lists of names; NULL for none.
    *_optional(sa.JSON, "avoid", "nodes", "failed_nodes"),
    *_required(sa.Double, "planned_at"),
    # When a quota let it through; it counts as sent from then on.
    *_optional(sa.Double, "claimed_at"),
    # By which epoch of the campaign's lease it was about to be sent.
    *_optional(sa.BigInteger, "sending_epoch"),
    *_optional(sa.Double, "submitted_at", "started_at", "finished_at"),
    # How long it ran; while it runs, as last saved.
    *_required(sa.Double, "running_s"),
    # What a pruned job had measured before it gave up. Not in `measurements`: it is none.
    *_optional(sa.JSON, "partial"),
    # Last: SQLite reads a row from its start, and lists need no log.
    *_required(PlainText, "log_tail"),
    sa.UniqueConstraint("trial_id", "number"),
    sa.UniqueConstraint("job_name"),
    sa.Index(None, "finished_at"),
    sa.Index(None, "planned_at"),
)

# Processes that drive campaigns. expires_at: by the database's clock, see `leases`. serves: it takes any campaign.
holders = sa.Table(
    "holders",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    *_required(sa.Double, "expires_at"),
    *_required(sa.Boolean, "serves"),
)

# holder: "" for nobody. epoch: grows with each new holder. vanished_epoch: the newest whose holder may wake up again.
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("campaign_id", PlainText, sa.ForeignKey("campaigns.id", ondelete="CASCADE"), primary_key=True),
    *_required(PlainText, "holder"),
    *_required(sa.BigInteger, "epoch", "vanished_epoch"),
    sa.Index(None, "holder"),
)

measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("attempt_id", _Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    *_required(sa.BigInteger, "tokens_per_step"),
    *_required(sa.Integer, "devices"),
    *_optional(sa.Double, "model_flops_per_token", "peak_flops_per_device", "compile_s"),
    # The fields of MeasurementSummary: what lists and rankings need of the steps and the ranks.
    *_required(sa.Double, "mean_step_time_s", "median_step_time_s", "step_time_low_s", "step_time_high_s"),
    *_optional(sa.BigInteger, "max_memory_bytes", "max_held_bytes"),
    *_required(sa.JSON, "first_losses", "first_gradient_norms", "software", "peak_memory_bytes", "peak_held_bytes"),
    *_required(sa.JSON, "attention_kernels", "knobs", "hardware"),
    *_optional(sa.JSON, "profile"),
)

# number counts from 0 over all steps of the job, warm-up first.
steps = sa.Table(
    "steps",
    metadata,
    sa.Column("attempt_id", _Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    *_required(sa.Boolean, "warmup"),
    *_required(sa.Double, "seconds"),
)

# AUTOINCREMENT: an id is never given twice, so a reader may say "after the last one that I saw".
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("campaign_id", PlainText, sa.ForeignKey("campaigns.id"), nullable=False),
    *_required(sa.Double, "at"),
    *_required(PlainText, "kind"),
    *_required(sa.JSON, "data"),
    sa.Index(None, "campaign_id", "id"),
    sqlite_autoincrement=True,
)

# sha256: of the secret, which nobody keeps. campaigns, trials, device_hours: its quotas; NULL for none.
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    *_required(PlainText, "sha256"),
    *_required(sa.JSON, "scopes", "projects"),
    *_required(sa.Double, "created_at"),
    *_optional(sa.Double, "expires_at", "last_used_at", "revoked_at"),
    *_optional(sa.Integer, "campaigns", "trials"),
    *_optional(sa.Double, "device_hours"),
    sa.UniqueConstraint("sha256"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    *_required(sa.Double, "at"),
    *_required(PlainText, "token", "action", "object", "outcome", "detail"),
    sa.Index(None, "at"),
    # Counted by the database's mark, as events are.
    sqlite_autoincrement=True,
)

# caller: the digest of its token. holder: the process that claimed the key last. campaign_id: what the request made or
# moved, set in that same transaction. status, headers and body: the answer, NULL until there is one.
idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("caller", PlainText, primary_key=True),
    sa.Column("key", PlainText, primary_key=True),
    *_required(PlainText, "fingerprint", "holder"),
    *_required(sa.Double, "at"),
    *_optional(PlainText, "campaign_id"),
    *_optional(sa.Integer, "status"),
    *_optional(sa.JSON, "headers"),
    *_optional(sa.LargeBinary, "body"),
    sa.Index(None, "at"),
)

# Constants of the physics as campaigns measured them. campaign: whose trials they are; not a key of another table, so
# that the calibration outlives it. document: the constants with their covariance, and the device as it was described.
calibrations = sa.Table(
    "calibrations",
    metadata,
    sa.Column("campaign", PlainText, primary_key=True),
    *_required(sa.Double, "created_at"),
    *_required(PlainText, "device", "workload", "program", "framework", "dtype", "version", "model", "cluster"),
    *_required(sa.Integer, "devices", "trials"),
    *_required(PlainText, "owner", "project"),
    *_required(sa.JSON, "document"),
    sa.Index(None, "device", "framework", "created_at"),
)

# One row, which is written to see whether the database takes writes. number: how often it was.
probes = sa.Table(
    "probes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    *_required(sa.BigInteger, "number"),
)
