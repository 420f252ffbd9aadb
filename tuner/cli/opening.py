"""The service over a home folder and its database, and the campaign in it that a command names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.access.home_folder import file_mode, home_mode, prepare_home
from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.cli.common import Refused, errors
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


def _find_campaign(service: Service, campaign_id: str) -> Campaign:
    if campaign_id == "last":
        newest = service.store.campaigns(limit=1)
        if not newest:
            raise Refused("there is no campaign yet; start one with `meshtune run SPEC`")
        return newest[0]
    try:
        return service.store.campaign(campaign_id)
    except NotFound:
        known = [campaign.id for campaign in service.store.campaigns(limit=20)]
        hint = did_you_mean(campaign_id, known) if known else "there is none yet"
        raise Refused(f"there is no campaign {campaign_id}; {hint}") from None
