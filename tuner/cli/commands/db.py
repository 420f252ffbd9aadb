"""`meshtune db upgrade|backup|check`: what keeps the database well."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from meshtune.runners.processes.command import call
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.cli.common import DEFAULT_HOME, DatabaseOption, HomeOption, Refused, console
from meshtune.tuner.store import StoreUnavailable, maintenance

# For a database of some hundred gigabytes.
DUMP_LIMIT_S = 6 * 3600.0
db_app = typer.Typer(no_args_is_help=True, help="Upgrade, copy and check the database.")


@db_app.command()
def upgrade(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Bring the database to the newest schema. Every other command does so as well; this one says what it did."""
    before, after = maintenance.upgrade(_existing(home, db))
    if before == after:
        console.print(f"the schema is {after} already, the newest")
    else:
        console.print(f"the schema was {before or 'none'} and is {after} now")


@db_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="Where to write the copy.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it is there.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Copy the database as it is at one moment, while services go on; the copy is read once before it gets its name."""
    url = _existing(home, db)
    source = maintenance.sqlite_file(url)
    with maintenance.new_file(file.absolute(), force=force) as partial:
        if source is not None:
            maintenance.copy_sqlite(source, partial)
        else:
            dump = maintenance.dump_of(url, partial)
            for command in (dump.command, dump.check):
                _run(command, {**os.environ, "LC_ALL": "C", **dump.environment})
        size = partial.stat().st_size
    console.print(f"wrote {file} ({size / 2**20:.1f} MiB)", soft_wrap=True)


@db_app.command()
def check(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Look for damage, for rows that contradict each other, and for jobs in flight without a folder. Exit code 1 where
    something is wrong."""
    report = maintenance.check(_existing(home, db))
    place = Home(home.absolute())
    lost = [name for campaign_id, name in report.in_flight if not place.job(campaign_id, name).is_dir()]
    troubles = [*report.troubles, *(f"the job {name} is in flight, but its folder is gone" for name in lost)]
    for trouble in troubles:
        console.print(trouble, soft_wrap=True)
    rows = ", ".join(f"{count} {name}" for name, count in report.rows.items())
    console.print(f"schema {report.schema}: {rows}; {len(report.in_flight)} jobs in flight", soft_wrap=True)
    if troubles:
        console.print(f"{len(troubles)} trouble{'s' if len(troubles) > 1 else ''}", style="red")
        raise typer.Exit(1)
    console.print("nothing is wrong")


def _run(command: tuple[str, ...], environment: dict[str, str]) -> None:
    answer = call(command, time_limit_s=DUMP_LIMIT_S, environment=environment)
    if answer.code != 0:
        raise StoreUnavailable(f"{command[0]}: {answer.complaint}", transient=True)


def _existing(home: Path, db: str) -> str:
    """The database's URL. Raises Refused for a SQLite file that is not there: nothing is made by looking."""
    place = Home(home.absolute())
    if not db and not Path(place.database_url.partition(":///")[2]).is_file():
        raise Refused(f"--home {home}: there is no database yet")
    return db or place.database_url
