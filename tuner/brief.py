"""A Brief is a trial in a list of many: what its last attempt came to, without steps, logs and values per rank."""

from __future__ import annotations

from dataclasses import dataclass

from runners.causes import Cause
from runners.outcome import Verdict
from search_spaces.plan import Plan
from tuner.digest import Digest
from tuner.expectation import Expectation
from tuner.trial import Origin, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """held_s: how long jobs that have ended held their devices, over all attempts. attempts: how many there were.
    value: what the page is sorted by. The rest as in `Trial` and its last `Attempt`."""

    number: int
    origin: Origin
    state: TrialState
    verdict: Verdict | None
    failure: Cause | None
    reason: str
    plan: Plan
    plan_key: str
    measurement: Digest | None
    expectation: Expectation | None
    held_s: float
    attempts: int
    nodes: tuple[str, ...]
    planned_at: float
    submitted_at: float | None
    started_at: float | None
    finished_at: float | None
    value: float | None
