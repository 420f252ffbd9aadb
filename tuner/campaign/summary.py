"""A campaign in a list: attempts counted by how they ended, scores of what was measured, and the summary of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.trial import TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """count attempts that are in one state and ended alike. last: of those, the last ones of their trials, or the
    others. failure: see `Outcome.failure`. held_s: how long those of them that have ended held their devices."""

    state: TrialState
    verdict: Verdict | None
    failure: Cause | None
    last: bool
    count: int
    held_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarySetting:
    """A measured setting in few numbers, see `Ranked`. trial: the one that chose it."""

    trial: int
    plan_key: str
    objective: Estimate
    step_time_s: float
    gain: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """trials: how many, by verdict, or by state while they have none. done: those that have ended; confirmations: those
    of them that ran a setting again, beyond the budget; in_flight: those that were sent and have not. failures: of
    those that failed, by cause. device_hours: of jobs that have ended. best: the recommended setting, see
    `Recommendation`; None before anything was measured."""

    trials: Mapping[str, int]
    done: int
    confirmations: int
    in_flight: int
    failures: Mapping[Cause, int]
    device_hours: float
    best: SummarySetting | None
    baseline: SummarySetting | None

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


class Score(NamedTuple):
    """A trial that was measured, or a confirmation that ended without: then it has no step time. A tuple, since there
    are thousands. step_time_s: the median. peak_bytes: of the fullest rank, None where it is not known."""

    number: int
    origin: str
    plan_key: str
    tokens_per_step: int
    devices: int
    model_flops_per_token: float | None
    step_time_s: float | None
    peak_bytes: float | None
