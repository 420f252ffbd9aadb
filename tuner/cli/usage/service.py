"""`serve`, `open`, `token create|list|revoke` and `db upgrade|backup|check`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshtune.runners.processes.job_user import RUN_AS
from meshtune.tuner.access.tokens import DEFAULT_EXPIRES, Scope
from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import DEFAULT_HOME, DatabaseOption, HomeOption

app = typer.Typer()
token_app = typer.Typer(no_args_is_help=True, help="Tokens for the REST API and the dashboard.")
db_app = typer.Typer(no_args_is_help=True, help="Upgrade, copy and check the database.")
app.add_typer(token_app, name="token")
app.add_typer(db_app, name="db")
Name = Annotated[
    str, typer.Argument(help="Whose it is; campaigns that it creates carry this name.", show_default=False)
]
BROWSER_SCOPES = [Scope.READ_ALL, Scope.LAUNCH]


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8000,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    metrics_open: Annotated[
        bool, typer.Option("--metrics-open", envvar="MESHTUNE_METRICS_OPEN", help="/metrics needs no token.")
    ] = False,
    public_url: Annotated[
        str, typer.Option(envvar="MESHTUNE_PUBLIC_URL", help="Where jobs reach this service; none: they do not.")
    ] = "",
    run_as: Annotated[
        str,
        typer.Option(envvar=RUN_AS, help="The user whose rights jobs on this machine have; needs root. None: ours."),
    ] = "",
    log_format: Annotated[LogFormat, typer.Option(envvar="MESHTUNE_LOG_FORMAT", help="For people or programs.")] = (
        LogFormat.TEXT
    ),
    log_level: Annotated[LogLevel, typer.Option(envvar="MESHTUNE_LOG_LEVEL", help="The least that is told.")] = (
        LogLevel.INFO
    ),
) -> None:
    """Serve the REST API and the dashboard, and drive every active campaign of this home."""
    commands.service.serve(
        home,
        db,
        host=host,
        port=port,
        metrics_open=metrics_open,
        public_url=public_url,
        run_as=run_as,
        log_json=log_format is LogFormat.JSON,
        log_level=log_level,
    )


@app.command(name="open")
def open_(
    scope: Annotated[list[Scope], typer.Option(help="What it allows; may be repeated.")] = BROWSER_SCOPES,
    expires: Annotated[str, typer.Option(help="12h, 90d, 8w, or never.")] = "12h",
    url: Annotated[
        str, typer.Option(help="Where the browser reaches the service; default: where the one of this home listens.")
    ] = "",
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Open the dashboard, signed in by a link, which is printed too. It ends the one that was made before."""
    commands.dashboard.open_(home, db, scope=scope, expires=expires, url=url)


@token_app.command()
def create(
    name: Name,
    scope: Annotated[list[Scope], typer.Option(help="What it allows; may be repeated.", show_default=False)],
    project: Annotated[
        list[str] | None,
        typer.Option(help="Project whose campaigns it reads and changes, NAME:read: reads; may be repeated."),
    ] = None,
    expires: Annotated[str, typer.Option(help="12h, 90d, 8w, or never.")] = DEFAULT_EXPIRES,
    campaigns: Annotated[int | None, typer.Option(min=0, help="Most campaigns active at once.")] = None,
    trials: Annotated[int | None, typer.Option(min=0, help="Most trials planned within 24 h.")] = None,
    device_hours: Annotated[float | None, typer.Option(min=0, help="Most device-hours within 30 days.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to a file of mode 0600.")] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Make a token and print it, once: it is kept nowhere."""
    commands.service.create(
        name,
        scope,
        home,
        db,
        projects=project or [],
        expires=expires,
        campaigns=campaigns,
        trials=trials,
        device_hours=device_hours,
        output=output,
    )


@token_app.command(name="list")
def list_tokens(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Show all tokens, those that open nothing any more included, and what of their quotas is used."""
    commands.service.list_tokens(home, db)


@token_app.command()
def revoke(name: Name, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Let a token open nothing any more, within 5 seconds. Its campaigns go on."""
    commands.service.revoke(name, home, db)


@db_app.command()
def upgrade(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Bring the database to the newest schema. Every other command does so as well; this one says what it did."""
    commands.service.upgrade(home, db)


@db_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="Where to write the copy.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it is there.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Copy the database as it is at one moment, while services go on; the copy is read once before it gets its name."""
    commands.service.backup(file, home, db, force=force)


@db_app.command()
def check(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Look for damage, for rows that contradict each other, and for jobs in flight without a folder. Exit code 1 where
    something is wrong."""
    commands.service.check(home, db)
