"""The analysis of a campaign as it is sent: of many trials it takes seconds, and another process makes it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from meshtune.api.dependencies import ONE_SPACE
from meshtune.api.schemas.analysis import AnalysisView, analysis_view
from meshtune.api.worker import Worker
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.space import space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.analysis.knob_importance import FEWEST_PLANS

_VIEW: TypeAdapter[AnalysisView] = TypeAdapter(AnalysisView)


def analysed(worker: Worker, campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    """The answer's body. Raises WorkerEnded."""
    # No forest grows from so few: made sooner than sent.
    if len(trials) < FEWEST_PLANS:
        return analysis_json(campaign, trials)
    return worker.run(analysis_json, campaign, trials)


def analysis_json(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    with ONE_SPACE:
        space = space_of(campaign.spec)
    return _VIEW.dump_json(analysis_view(analyse(campaign, space, trials)))
