"""Reading for pages that many people poll: what is shown of campaigns and trials is made once for each change.

The newest event of a campaign is the version of what its trials say, since every change of a trial tells itself in its
own transaction. A version is read before what it stands for, so what is kept is never older than it says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from pydantic import TypeAdapter

from meshtune.api.analysing import analysed
from meshtune.api.answers import Answer, answer_of
from meshtune.api.archive import Archive
from meshtune.api.kept import Kept
from meshtune.api.polled import Polled
from meshtune.api.schemas.campaigns import BestView, CampaignView, ParetoView, best_view, campaign_view, pareto_view
from meshtune.api.summaries import TOP, Summaries
from meshtune.api.worker import Worker
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.listing import Stamp
from meshtune.tuner.results.ranking import Ranked, completed, numbers_of
from meshtune.tuner.results.recommendation import front_of, recommend_among
from meshtune.tuner.store import Store

# The events that change what trials teach; a job that is sent or begins to run teaches nothing yet.
TEACHING = ("campaign.created", "trial.planned", "trial.done")
# Bytes of packed answers, and of campaigns as lists show them.
MOST_ANSWERS = 64 * 2**20
MOST_VIEWS = 32 * 2**20
# Campaigns whose specs are kept; about 10 kB each.
MOST_CAMPAIGNS = 2000
_CAMPAIGN: TypeAdapter[CampaignView] = TypeAdapter(CampaignView)
_BEST: TypeAdapter[BestView] = TypeAdapter(BestView)
_PARETO: TypeAdapter[ParetoView] = TypeAdapter(ParetoView)

# Makes the body of an answer from a campaign, of which only the spec is sure to be new, and its newest event.
Render = Callable[[Campaign, int], bytes]


class Reading:
    """One for each process, over its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers: Kept[Answer] = Kept(MOST_ANSWERS, lambda answer: answer.weight)
        self._views: Kept[bytes] = Kept(MOST_VIEWS, len)
        self._archive = Archive(store)
        self._worker = Worker()
        self.summaries = Summaries(store, over=self.best)
        self._campaigns: Kept[Campaign] = Kept(MOST_CAMPAIGNS)

    def start(self) -> None:
        """Begin to make ahead and to write down, and allow work elsewhere."""
        self._worker.start()
        self._archive.start()
        self.summaries.start()

    def stop(self, limit_s: float) -> bool:
        """End all of it; whether it has ended within so long."""
        self.end_soon()
        stop_by = time.monotonic() + limit_s
        ended = [part.stop(max(0.0, stop_by - time.monotonic())) for part in (self.summaries, self._archive)]
        return all(ended)

    def end_soon(self) -> None:
        """Break off what takes seconds; whoever waits for it is told so."""
        self._worker.stop()

    def of_trials(self, campaign_id: str, question: str, render: Render) -> Answer:
        """What `render` makes of the campaign's spec and trials, and of nothing else. question: names it among the
        answers of the campaign. Raises NotFound."""
        event = self._store.pages.newest_event(campaign_id)
        return self._answers.get_or_make((campaign_id, question), event, lambda: self._made(campaign_id, event, render))

    def best(self, campaign_id: str, top: int = TOP) -> Answer:
        """The recommendation, the best settings and the front. Raises NotFound."""
        if top != TOP:
            return self.of_trials(campaign_id, f"best {top}", lambda campaign, event: self._best(campaign, event, top))
        return self._archived(campaign_id, "best", lambda campaign, event: self._best(campaign, event, TOP))

    def pareto(self, campaign_id: str) -> Answer:
        """The front alone. Raises NotFound."""
        return self._archived(campaign_id, "pareto", self._pareto)

    def known_analysis(self, campaign_id: str) -> Answer | None:
        """The analysis, None where it is still to be made. Raises NotFound."""
        event = self._store.pages.newest_event(campaign_id, TEACHING)
        kept = self._answers.get((campaign_id, "analysis"), event)
        return kept or self._archive.kept(campaign_id, "analysis", event)

    def analysis(self, campaign_id: str) -> Answer:
        """What the trials teach. Raises NotFound, WorkerEnded."""
        return self._archived(
            campaign_id,
            "analysis",
            lambda campaign, _: analysed(self._worker, campaign, self._store.trials(campaign_id)),
            TEACHING,
        )

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

    def _archived(self, campaign_id: str, question: str, render: Render, kinds: Collection[str] = ()) -> Answer:
        """As `of_trials`; of a campaign that is over, for every later start of the service, too. kinds: of the events
        that change it, all where none is named."""
        event = self._store.pages.newest_event(campaign_id, kinds)

        def found() -> Answer:
            kept = self._archive.kept(campaign_id, question, event)
            if kept is not None:
                return kept
            made = self._made(campaign_id, event, render)
            self._archive.keep(campaign_id, question, event, made)
            return made

        return self._answers.get_or_make((campaign_id, question), event, found)

    def _made(self, campaign_id: str, event: int, render: Render) -> Answer:
        return answer_of(render(self._spec_of(campaign_id), event))

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

    def _best(self, campaign: Campaign, event: int, top: int) -> bytes:
        ranking = self.summaries.shortlist(campaign, event, top).ranking
        recommendation = recommend_among(campaign.spec, ranking)
        choice = [] if recommendation.choice is None else [recommendation.choice]
        ranking = self._with_whole(campaign, ranking, [*ranking[:top], *front_of(ranking), *choice])
        if (chosen := recommendation.choice) is not None:
            whole = next(entry for entry in ranking if entry.rank == chosen.rank)
            recommendation = replace(recommendation, choice=whole)
        return _BEST.dump_json(best_view(campaign, recommendation, ranking, top))

    def _pareto(self, campaign: Campaign, event: int) -> bytes:
        ranking = self.summaries.shortlist(campaign, event, TOP).ranking
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
