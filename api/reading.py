"""Reading for pages that many people poll: what is shown of campaigns and trials is made once for each change.

The newest event of a campaign is the version of what its trials say, since every change of a trial tells itself in its
own transaction. A version is read before what it stands for, so what is kept is never older than it says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from pydantic import TypeAdapter

from api.answers import Answer, answer_of
from api.kept import Kept
from api.polled import Polled
from api.summaries import Summaries
from api.views import BestView, CampaignView, ParetoView, best_view, campaign_view, pareto_view
from tuner.campaign import Campaign
from tuner.pages import Stamp
from tuner.pareto import front_of
from tuner.ranking import Ranked, completed, numbers_of, rank
from tuner.recommend import recommend_among
from tuner.store import Store

# Bytes of packed answers, and of campaigns as lists show them.
MOST_ANSWERS = 64 * 2**20
MOST_VIEWS = 32 * 2**20
# Campaigns whose specs are kept; about 10 kB each.
MOST_CAMPAIGNS = 2000
_CAMPAIGN: TypeAdapter[CampaignView] = TypeAdapter(CampaignView)
_BEST: TypeAdapter[BestView] = TypeAdapter(BestView)
_PARETO: TypeAdapter[ParetoView] = TypeAdapter(ParetoView)


class Reading:
    """One for each process, over its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers: Kept[Answer] = Kept(MOST_ANSWERS, lambda answer: answer.weight)
        self._views: Kept[bytes] = Kept(MOST_VIEWS, len)
        self.summaries = Summaries(store)
        self._campaigns: Kept[Campaign] = Kept(MOST_CAMPAIGNS)

    def of_trials(self, campaign_id: str, question: str, render: Callable[[Campaign], bytes]) -> Answer:
        """What `render` makes of the campaign's spec and trials, and of nothing else. question: names it among the
        answers of the campaign. Raises NotFound."""
        version = self._store.pages.newest_event(campaign_id)
        return self._answers.get_or_make(
            (campaign_id, question), version, lambda: answer_of(render(self._spec_of(campaign_id)))
        )

    def best(self, campaign_id: str, top: int) -> Answer:
        """The recommendation, the best settings and the front. Raises NotFound."""
        return self.of_trials(campaign_id, f"best {top}", lambda campaign: self._best(campaign, top))

    def pareto(self, campaign_id: str) -> Answer:
        """The front alone. Raises NotFound."""
        return self.of_trials(campaign_id, "pareto", self._pareto)

    def campaign(self, campaign: Campaign, trouble: str) -> Answer:
        """One campaign, as it is given. Raises NotFound."""
        event = self._store.pages.newest_event(campaign.id)
        return answer_of(_CAMPAIGN.dump_json(campaign_view(campaign, self.summaries.of(campaign, event), trouble)))

    def campaigns(
        self, question: str, stamps: Sequence[Stamp], troubles: Mapping[str, str], token: str | None
    ) -> Answer:
        """A page of campaigns. question: names the page among others. troubles: by campaign, of those that have any.
        token: of the next page."""
        versions = {stamp.id: (stamp.event, stamp.updated_at, troubles.get(stamp.id, "")) for stamp in stamps}
        return self._answers.get_or_make(
            question, (tuple(versions.items()), token), lambda: answer_of(self._page(versions, token))
        )

    def _page(self, versions: Mapping[str, tuple[int, float, str]], token: str | None) -> bytes:
        views = {id: self._views.get(id, version) for id, version in versions.items()}
        changed = self._store.pages.campaigns([id for id, view in views.items() if view is None])
        summaries = self.summaries.of_all(list(changed.values()), {id: versions[id][0] for id in changed})
        for id, campaign in changed.items():
            view = _CAMPAIGN.dump_json(campaign_view(campaign, summaries[id], versions[id][2]))
            self._views.put(id, versions[id], view)
            views[id] = view
        shown = b",".join(view for view in views.values() if view is not None)
        return b'{"campaigns":[%b],"next_page_token":%b}' % (shown, json.dumps(token).encode())

    def _best(self, campaign: Campaign, top: int) -> bytes:
        ranking = rank(campaign, self._store.pages.measured(campaign.id))
        recommendation = recommend_among(campaign.spec, ranking)
        choice = [] if recommendation.choice is None else [recommendation.choice]
        ranking = self._with_whole(campaign, ranking, [*ranking[:top], *front_of(ranking), *choice])
        if recommendation.choice is not None:
            recommendation = replace(recommendation, choice=ranking[recommendation.choice.rank - 1])
        return _BEST.dump_json(best_view(campaign, recommendation, ranking, top))

    def _pareto(self, campaign: Campaign) -> bytes:
        ranking = rank(campaign, self._store.pages.measured(campaign.id))
        return _PARETO.dump_json(pareto_view(campaign, self._with_whole(campaign, ranking, front_of(ranking))))

    def _with_whole(self, campaign: Campaign, ranking: Sequence[Ranked], shown: Sequence[Ranked]) -> list[Ranked]:
        """The ranking, with the whole trials in those entries that are shown."""
        trials = self._store.pages.numbered(campaign.id, numbers_of(shown))
        ranks = {entry.rank for entry in shown}
        return [completed(entry, trials) if entry.rank in ranks else entry for entry in ranking]

    def _spec_of(self, campaign_id: str) -> Campaign:
        """A campaign for its spec, which never changes."""
        return self._campaigns.get_or_make(campaign_id, None, lambda: self._store.campaign(campaign_id))


async def reading_of(request: Request) -> Reading:
    reading: Reading = request.app.state.reading
    return reading


async def polled_of(request: Request) -> Polled:
    polled: Polled = request.app.state.polled
    return polled


ReadingHandle = Annotated[Reading, Depends(reading_of)]
PolledHandle = Annotated[Polled, Depends(polled_of)]
