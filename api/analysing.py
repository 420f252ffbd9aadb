"""The analysis of a campaign as it is sent: of many trials it takes seconds, and another process makes it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from api.analysis_views import AnalysisView, analysis_view
from api.handles import ONE_SPACE
from api.worker import Worker
from tuner.analysis import analyse
from tuner.campaign import Campaign
from tuner.sensitivity import FEWEST_PLANS
from tuner.space import space_of
from tuner.trial import Trial

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
