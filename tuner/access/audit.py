"""What the audit log tells: who did, or tried to do, what to which object, and what came of it. It holds no secrets."""

from __future__ import annotations

from dataclasses import dataclass

# An entry goes when it is older, and the oldest go when there are more.
KEPT_S = 400 * 86400.0
MOST_ENTRIES = 1_000_000
# What asks from outside decides how long it is; a line of a log stays one.
MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that was done or refused. token: the name of whoever asked; "" for nobody known. action: such as
    "POST /v1/campaigns/{campaign_id}:pause" or "token create". outcome: "done", or the status and kind of a refusal.
    """

    at: float
    token: str
    action: str
    object: str = ""
    outcome: str = "done"
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A deed as it is kept. id grows with time."""

    id: int
    deed: Deed
