"""The audit log: who did, or tried to do, what to which object, and the outcome. It holds no secrets."""

from __future__ import annotations

from dataclasses import dataclass

# A record goes when it is older, and the oldest go when there are more.
KEPT_S = 400 * 86400.0
MAX_RECORDS = 1_000_000
# Callers from outside decide how long the texts are; a line of a log stays one.
MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One thing that was done or refused."""

    # Grows with time; 0 before it is stored.
    id: int = 0
    at: float
    # The name of the caller's token; empty for nobody known.
    token: str
    # Such as "POST /v1/campaigns/{campaign_id}:pause" or "token create".
    action: str
    object: str = ""
    # "done", or the status and kind of a refusal.
    outcome: str = "done"
    detail: str = ""
