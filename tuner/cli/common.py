"""Parts of all commands: arguments and options, the service, spec, campaign or plan that they name, and printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from meshtune.runners.documents import read_value
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.access.home_folder import file_mode, home_mode, prepare_home
from meshtune.tuner.access.tokens import database_url
from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import NotFound, Store

SpecFile = Annotated[Path, typer.Argument(help="Campaign spec, YAML.", show_default=False)]
CampaignId = Annotated[str, typer.Argument(help="Campaign id, or `last` for the newest.", show_default=False)]
HomeOption = Annotated[
    Path, typer.Option("--home", envvar="MESHTUNE_HOME", help="Folder with the database and the jobs' files.")
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="MESHTUNE_DB",
        callback=database_url,
        help="Database URL, or in a file that MESHTUNE_DB_FILE names; default: SQLite in the home folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DEFAULT_HOME = Path(".meshtune")
# A file or a pipe has no width to cut tables at.
PIPE_WIDTH = 240


def _console(*, stderr: bool) -> Console:
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else PIPE_WIDTH
    # No markup: a log or a reason may hold brackets.
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


console = _console(stderr=False)
errors = _console(stderr=True)


class Refused(Exception):
    """The command makes no sense as things are; nothing was done."""


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


def read_spec_file(spec: Path, home: Path | None) -> tuple[object, CampaignSpec, Space]:
    """The document in a spec's file, what it means, and its space. Creates nothing.

    home None: the spec is only looked at, so that its runner need not be able to run it here. Raises Refused with every
    mistake, OSError.
    """
    try:
        document = parse_yaml(read_file(spec, SLOW_LIMITS.max_bytes, regular=False))
        return document, *read_spec(document, None if home is None else Home(home.absolute()))
    except UnreadableText as error:
        raise Refused(f"{spec}: {error}") from None
    except InvalidSpec as error:
        lines = [f"  {problem}" for problem in error.problems]
        mistakes = f"{len(lines)} mistake{'s' if len(lines) > 1 else ''}"
        raise Refused("\n".join([f"{spec}: the spec has {mistakes}:", *lines])) from None


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


def plan_fields(text: str) -> dict[str, Any]:
    """Plan fields from `name=value,name=value`. Raises InvalidValue."""
    given = dict(part.partition("=")[::2] for part in text.replace(",", " ").split())
    plan = read_value(Plan, given)
    return {name: getattr(plan, name) for name in given}


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def print_page(page: Iterable[RenderableType | str]) -> None:
    """Print lines and tables; only tables are cut to the width."""
    for part in page:
        console.print(part, soft_wrap=isinstance(part, str | Text))


def print_found(document: object, page: Iterable[RenderableType | str], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_page(page)
