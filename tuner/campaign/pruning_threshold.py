"""The step time that a new trial must beat, where the spec lets trials race against the best one so far.

A trial that is surely slower ends as PRUNED, without a measurement: a search sees that as a failed plan, so racing
saves steps at the price of what the search could have learned from a slow one. Off unless the spec asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Origin, Trial


def incumbent_step_time_s(campaign: Campaign, trials: Sequence[Trial], trial: Trial) -> float | None:
    """The upper end of the best measured trial's interval, scaled to the tokens that `trial` does in a step.

    None: no racing, nothing measured yet, or a trial that must be measured to its end: the baseline, which everything
    is compared with, and a confirmation. Any objective ranks plans on equal devices by tokens per second.
    """
    if not campaign.spec.trial.racing or trial.origin is not Origin.SEARCH:
        return None
    tokens = trial.plan.global_batch_size * campaign.spec.model.seq_len
    measured = [known.measurement for known in trials if known.measurement is not None]
    if not measured:
        return None
    best = max(measured, key=lambda measurement: measurement.tokens_per_s)
    return best.step_time_interval_s.high * tokens / best.tokens_per_step
