"""Where a command finds its campaigns: the service over a home folder and its database, and the campaign that it names
in there, or its record, which a service gives as well."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.access.home_folder import file_mode, home_mode, prepare_home
from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.cli import commands
from meshtune.tuner.cli.common import Refused, errors
from meshtune.tuner.cli.usage.options import Place
from meshtune.tuner.results.record import Record
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import NotFound, Store


@contextmanager
def open_service(home: Path, db: str, *, create: bool = False) -> Iterator[Service]:
    """The service over a home folder and its database. create: where they are missing, make them."""
    url = (db or Home(home.absolute()).database_url) if create else existing_database(home, db)
    place, mode = Home(home.absolute()), home_mode(os.environ)

    def prepare() -> None:
        for message in prepare_home(place, mode) if create or home.is_dir() else ():
            errors.print(f"meshtune: {message}", style="yellow", soft_wrap=True)

    if not db:
        prepare()
    with Store.open(url, file_mode=file_mode(mode)) as store:
        if db:  # a database that cannot be used leaves no home behind
            prepare()
        service = Service(store, place)
        try:
            yield service
        finally:
            service.close()


def existing_database(home: Path, db: str) -> str:
    """The database's URL. Raises Refused for a SQLite file that does not exist."""
    url = db or Home(home.absolute()).database_url
    scheme, _, file = url.partition(":///")
    if scheme == "sqlite" and not file.startswith("file:") and not Path(file.split("?")[0]).is_file():
        where = f"--db {db}" if db else f"--home {home}"
        raise Refused(f"{where}: there is no database yet; `meshtune run SPEC` creates it")
    return url


@contextmanager
def open_campaign(home: Path, db: str, campaign_id: str) -> Iterator[tuple[Service, Campaign]]:
    """The service, and the campaign of that id, or with `last` the newest."""
    with open_service(home, db) as service:
        yield service, _find_campaign(service, campaign_id)


def recorded(place: Place, campaign_id: str) -> Record:
    """The campaign of that id, or with `last` the newest, with its trials: all that its results are made of."""
    if place.server:
        with commands.remote.open_remote(place, campaign_id) as remote:
            return remote.record()
    with open_campaign(place.home, place.db, campaign_id) as (service, chosen):
        return Record(campaign=chosen, trials=tuple(service.store.trials(chosen.id)))


def _find_campaign(service: Service, campaign_id: str) -> Campaign:
    if campaign_id == "last":
        newest = service.store.campaigns(limit=1)
        return newest[0] if newest else refuse_unknown(campaign_id, [])
    try:
        return service.store.campaign(campaign_id)
    except NotFound:
        return refuse_unknown(campaign_id, [campaign.id for campaign in service.store.campaigns(limit=20)])


def refuse_unknown(campaign_id: str, known: Sequence[str]) -> NoReturn:
    """Raises Refused. known: the newest campaigns that there are."""
    if campaign_id == "last":
        raise Refused("there is no campaign yet; start one with `meshtune run SPEC`")
    hint = did_you_mean(campaign_id, known) if known else "there is none yet"
    raise Refused(f"there is no campaign {campaign_id}; {hint}") from None
