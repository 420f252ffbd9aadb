"""What a list shows of a campaign: how its trials ended, what they cost, and the setting to use so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runners.causes import Cause
from runners.outcome import Verdict
from tuner.campaign import Campaign
from tuner.quantity import Estimate
from tuner.ranking import Ranked, rank
from tuner.recommend import recommend_among
from tuner.trial import Origin, Trial, TrialState


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


def summarise(campaign: Campaign, tallies: Sequence[Tally], measured: Sequence[Trial]) -> Summary:
    """measured: the trials that were measured and the confirmations that have ended, or a shortlist of these."""
    ranking = rank(campaign, measured)
    trials: Counter[str] = Counter()
    failures: Counter[Cause] = Counter()
    done = in_flight = 0
    for tally in tallies:
        if not tally.last:
            continue
        trials[str(tally.verdict or tally.state)] += tally.count
        done += tally.count if tally.state.final else 0
        in_flight += tally.count if tally.state in (TrialState.SUBMITTED, TrialState.RUNNING) else 0
        if tally.failure is not None:
            failures[tally.failure] += tally.count
    return Summary(
        trials=dict(trials),
        done=done,
        confirmations=sum(trial.origin is Origin.CONFIRMATION and trial.state.final for trial in measured),
        in_flight=in_flight,
        failures={cause: failures[cause] for cause in Cause if cause in failures},
        device_hours=sum(tally.held_s for tally in tallies) * campaign.spec.cluster.devices / 3600.0,
        best=_setting(recommend_among(campaign.spec, ranking).choice),
        baseline=_setting(next((entry for entry in ranking if entry.trial.origin is Origin.BASELINE), None)),
    )


def _setting(entry: Ranked | None) -> SummarySetting | None:
    if entry is None:
        return None
    return SummarySetting(
        trial=entry.trial.number,
        plan_key=entry.trial.plan.key,
        objective=entry.objective,
        step_time_s=entry.measurement.step_time_s,
        gain=entry.gain,
    )
