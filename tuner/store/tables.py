"""The tables: one row per campaign, trial, attempt, measurement, step and event. Layouts are columns, open to SQL.

Rows refer to each other by their ids; `(campaign_id, number)` and `job_name` are the names that the outside uses.
The schema of a database is made by `migrations`; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

from meshtune.search_spaces.plan import AXES


class PlainText(TypeDecorator[str]):
    """Text that every database takes: what none can hold becomes U+FFFD, in rows and in look-ups alike.

    Logs of crashed jobs do hold such things: PostgreSQL refuses NUL, and both refuse the lone surrogates that
    decoding with "surrogateescape" leaves.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# SQLite counts only a column of the exact type INTEGER by itself.
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _required(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


# JSON, not JSONB: kept as written, so that a spec comes back exactly and escaped NULs are taken.
campaigns = Table(
    "campaigns",
    metadata,
    Column("id", PlainText, primary_key=True),
    _required("name", PlainText),
    _required("spec", JSON),
    _required("state", PlainText),
    _required("reason", PlainText),
    _required("created_at", Double),
    _required("updated_at", Double),
    _required("running_since", Double),
    _required("elapsed_s", Double),
    _required("combinations", BigInteger),
    _required("legal", BigInteger),
    _required("search_ended", PlainText),
    Column("chance_left", Double),
    _required("lessons", JSON),
    # The name of the token that created it; empty for the command line and for trusted loopback.
    _required("owner", PlainText),
    # From the spec: what later campaigns look for, and what quotas count.
    _required("devices", Integer),
    _required("device", PlainText),
    _required("workload", PlainText),
    # From the spec, for pages of campaigns: the names of its model and its cluster.
    _required("model", PlainText),
    _required("cluster", PlainText),
    Index(None, "created_at", "id"),
    Index(None, "device", "workload", "created_at", "id"),
    Index(None, "state", "updated_at"),
)

# Of an axis of the plan, by what its values are; words are text.
_PLAN_TYPES: Mapping[type, Any] = {int: Integer, bool: Boolean}

trials = Table(
    "trials",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", PlainText, ForeignKey("campaigns.id"), nullable=False),
    _required("number", Integer),
    _required("origin", PlainText),
    _required("plan_key", PlainText),
    *(_required(axis.name, _PLAN_TYPES.get(axis.kind, PlainText)) for axis in AXES),
    Column("expectation", JSON),
    # The index of this constraint is the one for "the trials of a campaign", too.
    UniqueConstraint("campaign_id", "number"),
    # With the origin: a confirmation repeats a plan.
    UniqueConstraint("campaign_id", "plan_key", "origin"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("trial_id", _Id, ForeignKey("trials.id"), nullable=False),
    _required("number", Integer),
    _required("job_name", PlainText),
    Column("job_id", PlainText),
    _required("state", PlainText),
    Column("verdict", PlainText),
    _required("reason", PlainText),
    # Where somebody named one; else it is the verdict's own.
    Column("cause", PlainText),
    Column("phase", PlainText),
    Column("failed_rank", Integer),
    # Lists of names; NULL for none.
    Column("avoid", JSON),
    Column("nodes", JSON),
    Column("failed_nodes", JSON),
    _required("planned_at", Double),
    # When a quota let it through; it counts as sent from then on.
    Column("claimed_at", Double),
    # By which epoch of the campaign's lease it was about to be sent.
    Column("sending_epoch", BigInteger),
    Column("submitted_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    # What a pruned job had measured before it gave up. Not in `measurements`: it is none.
    Column("partial", JSON),
    # Last: SQLite reads a row from its start, and lists need no log.
    _required("log_tail", PlainText),
    UniqueConstraint("trial_id", "number"),
    UniqueConstraint("job_name"),
    Index(None, "finished_at"),
    Index(None, "planned_at"),
)

# Processes that drive campaigns. expires_at: by the database's clock, see `leases`. serves: it takes any campaign.
holders = Table(
    "holders",
    metadata,
    Column("name", PlainText, primary_key=True),
    _required("expires_at", Double),
    _required("serves", Boolean),
)

# holder: "" for nobody. epoch: grows with each new holder. vanished_epoch: the newest whose holder may wake up again.
leases = Table(
    "leases",
    metadata,
    Column("campaign_id", PlainText, ForeignKey("campaigns.id", ondelete="CASCADE"), primary_key=True),
    _required("holder", PlainText),
    _required("epoch", BigInteger),
    _required("vanished_epoch", BigInteger),
    Index(None, "holder"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("attempt_id", _Id, ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    _required("tokens_per_step", BigInteger),
    _required("devices", Integer),
    Column("model_flops_per_token", Double),
    Column("peak_flops_per_device", Double),
    # The fields of MeasurementSummary: what lists and rankings need of the steps and the ranks.
    _required("median_step_time_s", Double),
    _required("step_time_low_s", Double),
    _required("step_time_high_s", Double),
    Column("max_memory_bytes", BigInteger),
    Column("max_held_bytes", BigInteger),
    _required("first_losses", JSON),
    _required("software", JSON),
    _required("peak_memory_bytes", JSON),
    _required("peak_held_bytes", JSON),
    Column("profile", JSON),
)

# number counts from 0 over all steps of the job, warm-up first.
steps = Table(
    "steps",
    metadata,
    Column("attempt_id", _Id, ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _required("warmup", Boolean),
    _required("seconds", Double),
)

# AUTOINCREMENT: an id is never given twice, so a reader may say "after the last one that I saw".
events = Table(
    "events",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", PlainText, ForeignKey("campaigns.id"), nullable=False),
    _required("at", Double),
    _required("kind", PlainText),
    _required("data", JSON),
    Index(None, "campaign_id", "id"),
    sqlite_autoincrement=True,
)

# sha256: of the secret, which nobody keeps. campaigns, trials, device_hours: its quotas; NULL for none.
tokens = Table(
    "tokens",
    metadata,
    Column("name", PlainText, primary_key=True),
    _required("sha256", PlainText),
    _required("scopes", JSON),
    _required("created_at", Double),
    Column("expires_at", Double),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    Column("campaigns", Integer),
    Column("trials", Integer),
    Column("device_hours", Double),
    UniqueConstraint("sha256"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", _Id, primary_key=True),
    _required("at", Double),
    _required("token", PlainText),
    _required("action", PlainText),
    _required("object", PlainText),
    _required("outcome", PlainText),
    _required("detail", PlainText),
    Index(None, "at"),
)

# caller: the digest of its token. status, headers and body: the answer, NULL until there is one.
idempotency = Table(
    "idempotency",
    metadata,
    Column("caller", PlainText, primary_key=True),
    Column("key", PlainText, primary_key=True),
    _required("fingerprint", PlainText),
    _required("at", Double),
    Column("status", Integer),
    Column("headers", JSON),
    Column("body", LargeBinary),
    Index(None, "at"),
)
