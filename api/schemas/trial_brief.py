"""What the REST API shows of a trial in a long list: one line of numbers, without steps, ranks and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from typing_extensions import TypeAliasType

from meshtune.api.schemas.trials import TrialPage, optional_time, rfc3339, view_of
from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.objective import Yardstick, yardstick_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Expectation, Origin, Trial, TrialState
from meshtune.tuner.campaign.units import Estimate


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


# Named, so that the document has one model for the route's answer.
TrialsAnswer = TypeAliasType("TrialsAnswer", TrialPage | TrialBriefPage)


def trial_briefs(spec: CampaignSpec, trials: Sequence[Trial]) -> list[TrialBrief]:
    yardstick = yardstick_of(spec)
    return [_brief(spec, yardstick, trial) for trial in trials]


def _brief(spec: CampaignSpec, yardstick: Yardstick, trial: Trial) -> TrialBrief:
    last, outcome, measured = trial.last, trial.outcome, trial.measurement
    interval = None if measured is None else measured.step_time_interval_s
    fullest = None if measured is None else measured.fullest_rank_bytes
    return view_of(
        TrialBrief,
        trial,
        failure=None if outcome is None else outcome.failure,
        reason="" if outcome is None else outcome.reason,
        plan_key=trial.plan.key,
        step_time_s=None if measured is None else measured.step_time_s,
        step_time_low_s=None if interval is None else interval.low,
        step_time_high_s=None if interval is None else interval.high,
        objective=None if measured is None else yardstick.reached(measured),
        tokens_per_s_per_device=None if measured is None else measured.tokens_per_s_per_device,
        peak_memory_bytes=None if measured is None else measured.max_memory_bytes,
        headroom_bytes=None if fullest is None else spec.cluster.device.memory_bytes - fullest,
        device_seconds=sum(attempt.running_s for attempt in trial.attempts) * spec.cluster.devices,
        attempts=len(trial.attempts),
        nodes=last.nodes,
        planned_at=rfc3339(last.planned_at),
        submitted_at=optional_time(last.submitted_at),
        started_at=optional_time(last.started_at),
        finished_at=optional_time(last.finished_at),
    )
