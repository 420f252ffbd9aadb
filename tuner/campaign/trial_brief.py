"""A Brief is a trial in a list of many: what its last attempt came to, without steps, logs and values per rank.

It is shown and not reasoned with, so its values are as they were stored: no Plan checks itself again for each line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtune.tuner.campaign.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """held_s: how long jobs that have ended held their devices, over all attempts. attempts: how many there were.
    value: what the page is sorted by. plan: as `Plan.as_dict`; expectation: by the names of its fields. The rest as in
    `Trial` and its last `Attempt`, enums by their values."""

    number: int
    origin: str
    state: str
    verdict: str | None
    failure: str | None
    reason: str
    plan: Mapping[str, Any]
    plan_key: str
    measurement: Digest | None
    expectation: Mapping[str, float] | None
    held_s: float
    attempts: int
    nodes: tuple[str, ...]
    planned_at: float
    submitted_at: float | None
    started_at: float | None
    finished_at: float | None
    value: float | None
