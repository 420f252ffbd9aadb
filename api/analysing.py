"""The analysis of a campaign as it is sent: of many trials it takes seconds, and another process makes it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from meshtune.api.dependencies import ONE_SPACE
from meshtune.api.worker import Worker
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.space import space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.analysis.analysis import Analysis, analyse
from meshtune.tuner.results.analysis.knob_importance import MIN_PLANS

_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)


def analysed(worker: Worker, campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    """The answer's body. Raises WorkerEnded."""
    # No forest grows from so few: made sooner than sent.
    if len(trials) < MIN_PLANS:
        return analysis_json(campaign, trials)
    return worker.run(analysis_json, campaign, trials)


def analysis_json(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    with ONE_SPACE:
        space = space_of(campaign.spec)
    return _ANALYSIS.dump_json(analyse(campaign, space, trials))
