"""What a list shows of a campaign: how its trials ended, what they cost, and the setting to use so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshtune.runners.failure_cause import Cause
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.summary import Summary, SummarySetting, Tally
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState
from meshtune.tuner.results.ranking import Ranked, rank
from meshtune.tuner.results.recommendation import recommend_among


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
