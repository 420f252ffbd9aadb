"""Campaigns of a home folder and its database, which this process works on itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from meshtune.runners.outcome import Outcome
from meshtune.search_spaces.space import Space
from meshtune.tuner.access.home_folder import file_mode, home_mode, prepare_home
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.common import WrongCall, console, errors, named
from meshtune.tuner.cli.following import work_on
from meshtune.tuner.cli.options import HomePlace
from meshtune.tuner.cli.render.display import CampaignRow
from meshtune.tuner.prediction.quote import Quote
from meshtune.tuner.results.analysis.analysis import Analysis, analyse
from meshtune.tuner.results.known_best import MAX_CAMPAIGNS, BestKnown, CampaignRecords, LaunchQuestion, best_measured
from meshtune.tuner.results.known_best_projection import best_projected
from meshtune.tuner.results.record import Record
from meshtune.tuner.service.changing import legal_plan
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.leases import CampaignBusy
from meshtune.tuner.service.service import Service, remeasure
from meshtune.tuner.store import NotFound, Store


class AtHome:
    def __init__(self, place: HomePlace) -> None:
        self._place = place

    @contextmanager
    def opened(self, campaign_id: str) -> Iterator[CampaignAtHome]:
        """The campaign whose id is or begins so, with `last` the newest. Raises WrongCall for one that is not there."""
        with open_service(self._place) as service:
            known = named(campaign_id, service.store.campaign, service.store.campaigns, NotFound)
            yield CampaignAtHome(service, known)

    def listed(self, most: int) -> list[CampaignRow]:
        """The newest campaigns, so many at the most."""
        with open_service(self._place) as service:
            wrong: list[str] = []
            known = service.store.campaigns(limit=most, unreadable=wrong)
            for problem in wrong:
                errors.print(f"meshtune: left out: {problem}", style="yellow", soft_wrap=True)
            counts = service.store.verdict_counts([entry.id for entry in known])
            return [
                CampaignRow(entry, datetime.fromtimestamp(entry.created_at, UTC), counts.get(entry.id, {}))
                for entry in known
            ]

    def recommend(self, question: LaunchQuestion) -> BestKnown:
        try:
            with self.opened("last") as newest:
                store = newest._service.store
                records = CampaignRecords(store.campaigns(limit=MAX_CAMPAIGNS), store.readable_trials)
                return best_measured(question, records) or best_projected(question, records)
        except WrongCall as error:
            raise WrongCall(f"{error}; `meshtune estimate SPEC` predicts the best plan without any") from None


def run_here(place: HomePlace, spec: CampaignSpec, space: Space, quote: Quote, text: str) -> Record:
    """The record of a new campaign, followed until it rests. text: the spec as it is written."""
    with open_service(place, create=True) as service:
        created = service.add(quote.limits.laid_over(spec), space.totals, drives=True, text=text)
        return CampaignAtHome(service, created).followed()


class CampaignAtHome:
    """One campaign, as it was found or last changed."""

    def __init__(self, service: Service, campaign: Campaign) -> None:
        self._service, self.campaign = service, campaign
        self.id, self.home = campaign.id, service.home

    @property
    def state(self) -> CampaignState:
        return self.campaign.state

    @property
    def reason(self) -> str:
        return self.campaign.reason

    def record(self) -> Record:
        return Record(campaign=self.campaign, trials=tuple(self._service.store.trials(self.id)))

    def analysis(self) -> Analysis:
        return analyse(self.campaign, space_of(self.campaign.spec), self._service.store.trials(self.id))

    def waits(self) -> str:
        return str(self._service.waits(self.id) or "")

    def excluded_nodes(self) -> Sequence[str]:
        """Those that new jobs are kept away from; none where only the service knows them."""
        return self._service.excluded_nodes(self.campaign)

    def update(self, **changes: Any) -> None:
        self.campaign = self._service.changing.change(self.id, changes)

    def pause(self) -> None:
        self.campaign = self._service.pause(self.id)

    def cancelled(self) -> str:
        """Cancel it and wait for its end: what it is then."""
        if self.state is not CampaignState.CANCELLING:  # else an earlier cancel was interrupted: finish it
            self._service.cancel(self.id)
        try:
            drive_one(Driver(self._service), self._service, self.id, lambda: None)
        except CampaignBusy as busy:
            return f"being cancelled: {busy}"
        return str(self._service.store.campaign(self.id).state)

    def delete(self) -> None:
        self._service.delete(self.id)

    def enqueue(self, plan: str) -> Trial:
        return self._service.changing.enqueue(self.id, legal_plan(self.campaign.spec, plan))

    def worked_on(self) -> Record | None:
        """Go on with it, followed, until it rests. None where another process drives it, as is told then."""
        rested = self.state is CampaignState.PAUSED
        try:
            if rested:
                self.campaign = self._service.resume(self.id)
            return self.followed()
        except CampaignBusy as busy:
            if not rested:
                raise
            console.print(f"{self.id} goes on: {busy}")
            return None

    def followed(self, *, quiet: bool = False) -> Record:
        """Drive it, followed, until it rests."""
        self.campaign = work_on(self._service, self.campaign, quiet=quiet)
        return self.record()

    def another(self, document: Mapping[str, Any], *, quiet: bool) -> Record:
        """As of `CampaignAtService`."""
        return CampaignAtHome(self._service, self._service.create(document, drives=True)).followed(quiet=quiet)

    def remeasure(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        """Run each trial's plan again; nothing of that is stored."""
        return remeasure(self._service, self.campaign, trials)


@contextmanager
def open_service(place: HomePlace, *, create: bool = False) -> Iterator[Service]:
    """The service over a home folder and its database. create: where they are missing, make them."""
    home, mode = Home(place.home.absolute()), home_mode(os.environ)
    url = (place.db or home.database_url) if create else existing_database(place)

    def prepare() -> None:
        for message in prepare_home(home, mode) if create or place.home.is_dir() else ():
            errors.print(f"meshtune: {message}", style="yellow", soft_wrap=True)

    if not place.db:
        prepare()
    with Store.open(url, file_mode=file_mode(mode)) as store:
        if place.db:  # a database that cannot be used leaves no home behind
            prepare()
        service = Service(store, home)
        try:
            yield service
        finally:
            service.close()


def existing_database(place: HomePlace) -> str:
    """The database's URL. Raises WrongCall for a SQLite file that does not exist."""
    url = place.db or Home(place.home.absolute()).database_url
    scheme, _, file = url.partition(":///")
    if scheme == "sqlite" and not file.startswith("file:") and not Path(unquote(file.split("?")[0])).is_file():
        where = f"--db {place.db}" if place.db else f"--home {place.home}"
        raise WrongCall(f"{where}: there is no database yet; `meshtune run SPEC` creates it")
    return url
