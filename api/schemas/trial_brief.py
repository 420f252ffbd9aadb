"""What the REST API shows of a trial in a long list: one line of numbers, without steps, ranks and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from pydantic_core import to_json
from typing_extensions import TypeAliasType

from meshtune.api.schemas.trials import TrialPage, optional_time, rfc3339
from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.digest import Digest
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.objective import Yardstick, yardstick_of
from meshtune.tuner.campaign.proposal import Expectation
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.campaign.trial_brief import Brief


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBrief:
    """A trial by its last attempt. failure: why it failed; null for one that did not. objective: the campaign's, by
    this run alone. peak_memory_bytes: of tensors, on the most loaded rank. headroom_bytes: what the fullest rank left
    of its device. device_seconds: of jobs that have ended, over all attempts; attempts: how many there were. All
    measured numbers are null where nothing was measured. The whole trial has the rest."""

    number: int
    origin: Origin
    state: TrialState
    verdict: Verdict | None
    failure: Cause | None
    reason: str
    plan: Plan
    plan_key: str
    step_time_s: float | None
    step_time_low_s: float | None
    step_time_high_s: float | None
    objective: Estimate | None
    tokens_per_s_per_device: float | None
    peak_memory_bytes: int | None
    headroom_bytes: float | None
    expectation: Expectation | None
    device_seconds: float
    attempts: int
    nodes: tuple[str, ...]
    planned_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBriefPage:
    trials: list[TrialBrief]
    next_page_token: str | None


_UNMEASURED = dict.fromkeys(
    (
        "step_time_s",
        "step_time_low_s",
        "step_time_high_s",
        "objective",
        "tokens_per_s_per_device",
        "peak_memory_bytes",
        "headroom_bytes",
    )
)
# Named, so that the document has one model for the route's answer.
TrialsAnswer = TypeAliasType("TrialsAnswer", TrialPage | TrialBriefPage)


def brief_page(spec: CampaignSpec, briefs: Sequence[Brief], token: str | None) -> bytes:
    """The JSON of a TrialBriefPage, without one: plain values are written several times as fast. token: of the next
    page."""
    yardstick = yardstick_of(spec)
    lines = [_line(spec, yardstick, brief) for brief in briefs]
    return to_json({"trials": lines, "next_page_token": token}, inf_nan_mode="null")


def _line(spec: CampaignSpec, yardstick: Yardstick, brief: Brief) -> dict[str, object]:
    """As TrialBrief."""
    return {
        "number": brief.number,
        "origin": brief.origin,
        "state": brief.state,
        "verdict": brief.verdict,
        "failure": brief.failure,
        "reason": brief.reason,
        "plan": brief.plan,
        "plan_key": brief.plan_key,
        **(_UNMEASURED if brief.measurement is None else _numbers(spec, yardstick, brief.measurement)),
        "expectation": brief.expectation,
        "device_seconds": brief.held_s * spec.cluster.devices,
        "attempts": brief.attempts,
        "nodes": brief.nodes,
        "planned_at": rfc3339(brief.planned_at),
        "submitted_at": optional_time(brief.submitted_at),
        "started_at": optional_time(brief.started_at),
        "finished_at": optional_time(brief.finished_at),
    }


def _numbers(spec: CampaignSpec, yardstick: Yardstick, measured: Digest) -> dict[str, object]:
    fullest = measured.fullest_rank_bytes
    objective = yardstick.reached(measured)
    return {
        "step_time_s": measured.median_s,
        "step_time_low_s": measured.low_s,
        "step_time_high_s": measured.high_s,
        "objective": asdict(objective),
        "tokens_per_s_per_device": measured.tokens_per_s_per_device,
        "peak_memory_bytes": max(measured.peak_memory_bytes, default=None),
        "headroom_bytes": None if fullest is None else spec.cluster.device.memory_bytes - fullest,
    }
