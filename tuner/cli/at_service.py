"""Campaigns of a service (`--server`): what can be done with those of a home (`at_home`), done by the client."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import Event, Thread
from typing import Any

import typer

from meshtune.runners.outcome import Outcome
from meshtune.search_spaces.checks import Problem
from meshtune.tuner.campaign.campaign import Campaign as StoredCampaign
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Trial, TrialState
from meshtune.tuner.cli.common import console, named
from meshtune.tuner.cli.following import ended_trials, follow
from meshtune.tuner.cli.options import Place
from meshtune.tuner.cli.render.display import CampaignRow
from meshtune.tuner.cli.spec_file import read_document, text_of, wrong_spec
from meshtune.tuner.client.campaign import Campaign
from meshtune.tuner.client.client import Client
from meshtune.tuner.client.errors import InvalidRequest, NotFound, ServiceError
from meshtune.tuner.prediction.quote import Quote
from meshtune.tuner.results.known_best import BestKnown, LaunchQuestion
from meshtune.tuner.results.record import Record
from meshtune.tuner.specs.document import changed_document

# Between two looks at a campaign that is followed; the record of a large one takes longer than this.
LOOK_S = 0.2
# So many times as long as a look takes it pauses, for the service's sake.
LOOK_SHARE = 4.0


class AtService:
    def __init__(self, place: Place) -> None:
        self._place = place

    @contextmanager
    def opened(self, campaign_id: str) -> Iterator[CampaignAtService]:
        """The campaign whose id is or begins so, with `last` the newest. Raises WrongCall for one that is not there."""
        with Client(self._place.server) as client:
            yield CampaignAtService(named(campaign_id, client.campaign, client.campaigns, NotFound), self._place)

    def listed(self, most: int) -> list[CampaignRow]:
        with Client(self._place.server) as client:
            views = [campaign.view for campaign in client.campaigns(limit=most)]
            return [CampaignRow(view, view.created_at, view.trials) for view in views]

    def recommend(self, question: LaunchQuestion) -> BestKnown:
        with Client(self._place.server) as client:
            return client.recommend(**{field.name: getattr(question, field.name) for field in fields(question)})

    @contextmanager
    def created(self, spec: Path, *, cluster: Path | None, project: str) -> Iterator[CampaignAtService]:
        body = _body_with(spec, cluster, project)
        with Client(self._place.server) as client:
            with _spec_mistakes(spec):
                campaign = client.create(body)
            yield CampaignAtService(campaign, self._place)

    def estimate(
        self, spec: Path, *, cluster: Path | None, model: str = "", project: str = "", to_run: bool = False
    ) -> Quote:
        body = _body_with(spec, cluster, project, model)
        with Client(self._place.server) as client, _spec_mistakes(spec):
            return client.estimate(body, to_run=to_run)


class CampaignAtService(Campaign):
    """The client's campaign, and what commands do beside its calls."""

    home = None  # its runner is asked there

    def __init__(self, remote: Campaign, place: Place) -> None:
        super().__init__(remote._link, remote.view)
        self._at = place

    @property
    def state(self) -> CampaignState:
        return self.view.state

    @property
    def reason(self) -> str:
        return self.view.reason

    def waits(self) -> str:
        return self.view.trouble

    def excluded_nodes(self) -> Sequence[str]:
        """None: they are known to the service alone."""
        return ()

    def cancelled(self) -> str:
        if self.state is not CampaignState.CANCELLING:
            self.cancel()
        return str(self.wait().state)

    def worked_on(self) -> Record:
        """Go on with it, followed, until it rests."""
        if self.state is CampaignState.PAUSED:
            self.resume()
        return self.followed(ended_trials(self.record().trials))

    def followed(self, ended: Collection[int] = ()) -> Record:
        """As it is once it rests. ended: trials of which a log says nothing any more. Ctrl-C ends this alone."""
        try:
            follow(self._look, self._drive, ended)
        except KeyboardInterrupt:
            console.print(f"\n{self.id} goes on at {self._at.server}. To follow it again, to look at it, or to end it:")
            for command in ("resume", "show", "cancel"):
                console.print(f"    meshtune {command} {self.id}{self._at.option}", soft_wrap=True)
            raise typer.Exit(130) from None
        return self.record()

    def another(self, document: Mapping[str, Any], *, quiet: bool) -> Record:
        """A new campaign beside this one, as it is once it rests. quiet: nothing is said meanwhile."""
        with Client(self._at.server) as client:
            made = CampaignAtService(client.create(document), self._at)
            return made.record() if quiet and made.wait() else made.followed()

    def remeasure(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        """Run each trial's plan again, as second runs of the campaign; yield each with its new outcome."""
        numbers = [self.rerun(trial.number).number for trial in trials]
        for trial, number in zip(trials, numbers, strict=True):
            self.wait_trial(number)
            outcome = next(one for one in self.record().trials if one.number == number).outcome
            assert outcome is not None  # of a trial that is done
            yield trial, outcome

    def _look(self) -> tuple[StoredCampaign, Sequence[Trial], str]:
        trouble = self.refresh().trouble
        record = self.record()
        return record.campaign, record.trials, trouble

    def _drive(self, watch: Callable[[], None]) -> None:
        """Call `watch` after what happens, many events at once where they come fast."""
        news, over, failed = Event(), Event(), list[ServiceError]()

        def listen() -> None:
            try:
                for _ in self.follow():
                    news.set()
            except ServiceError as error:
                failed.append(error)
            finally:
                over.set()
                news.set()

        Thread(target=listen, daemon=True).start()
        while not over.is_set() and not self._rests():
            news.wait()
            news.clear()
            before = time.monotonic()
            watch()
            over.wait(LOOK_S + LOOK_SHARE * (time.monotonic() - before))
        watch()
        if failed:
            raise failed[0]

    def _rests(self) -> bool:
        """Paused, with nothing out."""
        out = sum(self.view.trials.get(state, 0) for state in (TrialState.SUBMITTED, TrialState.RUNNING))
        return self.state is CampaignState.PAUSED and not out


def _body_with(spec: Path, cluster: Path | None, project: str, model: str = "") -> Any:
    """The spec in a file as it is sent: as its text, comments and all, where nothing is put into it."""
    document = read_document(spec, cluster, model)
    document = changed_document(document, {"project": project}) if project else document
    return text_of(spec, document) or document


@contextmanager
def _spec_mistakes(spec: Path) -> Iterator[None]:
    """Mistakes in a spec: the service's answer raises WrongCall, as a check at home does."""
    try:
        yield
    except InvalidRequest as error:
        if not error.problem.type.endswith("/invalid-spec"):
            raise
        # Pointers are of RFC 6901.
        paths = [one.pointer.replace("/", ".").replace("~1", "/").replace("~0", "~")[1:] for one in error.mistakes]
        problems = [Problem(path, one.detail) for path, one in zip(paths, error.mistakes, strict=True)]
        raise wrong_spec(spec, problems) from None
