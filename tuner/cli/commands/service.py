"""The commands that run a service: `serve`, `token create|list|revoke` and `db upgrade|backup|check`."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from meshtune.runners.processes.command import call
from meshtune.runners.processes.job_user import RUN_AS, job_user, shut_home
from meshtune.tuner.access.tokens import (
    DEFAULT_EXPIRES,
    AuditRecord,
    Quotas,
    Scope,
    Token,
    digest,
    expiry,
    new_secret,
    write_private,
)
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.cli.commands.dashboard import announce
from meshtune.tuner.cli.common import (
    DEFAULT_HOME,
    DatabaseOption,
    HomeOption,
    Refused,
    console,
    errors,
    existing_database,
    open_service,
)
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.telemetry import LogFormat, LogLevel, set_up_logging
from meshtune.tuner.store import StoreUnavailable, maintenance

token_app = typer.Typer(no_args_is_help=True, help="Tokens for the REST API and the dashboard.")
COLUMNS = ("name", "scopes", "state", "expires", "last used", "campaigns", "trials / 24 h", "device-hours / 30 d")
Name = Annotated[
    str, typer.Argument(help="Whose it is; campaigns that it creates carry this name.", show_default=False)
]
# For a database of some hundred gigabytes.
DUMP_LIMIT_S = 6 * 3600.0
db_app = typer.Typer(no_args_is_help=True, help="Upgrade, copy and check the database.")
COMMAND_MEANS = (
    "command: its specs run programs with the rights of the service, which is as much as admin, unless the service was"
    " started with --run-as USER"
)
# By name: this package knows nothing of the web.
SERVER = "meshtune.api.app"


@token_app.command()
def create(
    name: Name,
    scope: Annotated[list[Scope], typer.Option(help="What it allows; may be repeated.", show_default=False)],
    expires: Annotated[str, typer.Option(help="12h, 90d, 8w, or never.")] = DEFAULT_EXPIRES,
    campaigns: Annotated[int | None, typer.Option(min=0, help="Most campaigns active at once.")] = None,
    trials: Annotated[int | None, typer.Option(min=0, help="Most trials planned within 24 h.")] = None,
    device_hours: Annotated[float | None, typer.Option(min=0, help="Most device-hours within 30 days.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to a file of mode 0600.")] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Make a token and print it, once: it is kept nowhere."""
    now, secret = time.time(), new_secret()
    token = Token(
        name=name,
        sha256=digest(secret),
        scopes=frozenset(scope),
        created_at=now,
        expires_at=expiry(expires, now),
        quotas=Quotas(campaigns=campaigns, trials=trials, device_hours=device_hours),
    )
    if output is not None and output.exists():
        raise Refused(f"{output} is there already")
    with open_service(home, db, create=True) as service:
        service.store.access.create(token)
        detail = f"{', '.join(sorted(token.scopes))}; expires {expires}"
        service.store.access.record(AuditRecord(at=now, token="", action="token create", object=name, detail=detail))
    if Scope.COMMAND in token.scopes:
        errors.print(COMMAND_MEANS, style="yellow", soft_wrap=True)
    if output is None:
        sys.stdout.write(secret + "\n")
        errors.print(f"the token {name} ({detail}) is shown this once", soft_wrap=True)
    else:
        write_private(output, secret + "\n")
        errors.print(f"wrote the token {name} ({detail}) to {output}", soft_wrap=True)


@token_app.command(name="list")
def list_tokens(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Show all tokens, those that open nothing any more included, and what of their quotas is used."""
    now = time.time()
    with open_service(home, db) as service:
        table = Table(*COLUMNS)
        for token in service.store.access.tokens():
            table.add_row(*_row(service, token, now))
    nothing = "there is no token yet; make one with `meshtune token create NAME --scope read`"
    console.print(table if table.rows else nothing)


@token_app.command()
def revoke(name: Name, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Let a token open nothing any more, within 5 seconds. Its campaigns go on."""
    now = time.time()
    with open_service(home, db) as service:
        service.store.access.revoke(name, now)
        service.store.access.record(AuditRecord(at=now, token="", action="token revoke", object=name))
    console.print(f"the token {name} is revoked")


def _row(service: Service, token: Token, now: float) -> tuple[str, ...]:
    used, quotas = service.store.access.used(token.name, now), token.quotas

    def of(used: str, quota: float | None) -> str:
        return used if quota is None else f"{used} of {quota:g}"

    def when(at: float | None) -> str:
        return "never" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))

    return (
        token.name,
        " ".join(sorted(token.scopes)),
        token.refusal(now).removeprefix("the token ").removeprefix("was ").removeprefix("has ") or "valid",
        when(token.expires_at),
        when(token.last_used_at),
        of(f"{used.campaigns}", quotas.campaigns),
        of(f"{used.trials}", quotas.trials),
        of(f"{used.device_hours:.3g}", quotas.device_hours),
    )


@db_app.command()
def upgrade(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Bring the database to the newest schema. Every other command does so as well; this one says what it did."""
    before, after = maintenance.upgrade(existing_database(home, db))
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
    url = existing_database(home, db)
    source = maintenance.sqlite_file(url)
    with maintenance.new_file(file.absolute(), force=force) as partial:
        if source is not None:
            maintenance.copy_sqlite(source, partial)
        else:
            dump = maintenance.dump_of(url, partial)
            for command in (dump.command, dump.check):
                environment = {**os.environ, "LC_ALL": "C", **dump.environment}
                answer = call(command, time_limit_s=DUMP_LIMIT_S, environment=environment)
                if answer.code != 0:
                    raise StoreUnavailable(f"{command[0]}: {answer.complaint}", transient=True)
        size = partial.stat().st_size
    console.print(f"wrote {file} ({size / 2**20:.1f} MiB)", soft_wrap=True)


@db_app.command()
def check(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Look for damage, for rows that contradict each other, and for jobs in flight without a folder. Exit code 1 where
    something is wrong."""
    report = maintenance.check(existing_database(home, db))
    place = Home(home.absolute())
    lost = [name for campaign_id, name in report.in_flight if not place.job(campaign_id, name).is_dir()]
    troubles = [*report.troubles, *(f"the job {name} is in flight, but its folder is gone" for name in lost)]
    for trouble in troubles:
        console.print(trouble, soft_wrap=True)
    rows = ", ".join(f"{count} {name}" for name, count in report.rows.items())
    console.print(f"schema {report.schema}: {rows}; {len(report.in_flight)} jobs in flight", soft_wrap=True)
    if troubles:
        console.print(f"{len(troubles)} problem{'s' if len(troubles) > 1 else ''}", style="red")
        raise typer.Exit(1)
    console.print("nothing is wrong")


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
    set_up_logging(log_format, log_level)
    os.environ[RUN_AS] = run_as
    user = job_user()
    if user is not None:
        os.umask(0o077)
    with open_service(home, db, create=True):
        pass  # a database that cannot be used is told here
    if user is not None:
        shut_home(home.resolve(), user)
    os.environ["MESHTUNE_HOME"] = str(home.absolute())
    if db:
        os.environ["MESHTUNE_DB"] = db
    os.environ["MESHTUNE_METRICS_OPEN"] = "1" if metrics_open else ""
    os.environ["MESHTUNE_PUBLIC_URL"] = public_url
    import_module(SERVER).run(host, port, lambda port, dashboard: _greet(host, port, home, dashboard))


def _greet(host: str, port: int, home: Path, dashboard: bool) -> None:
    """Say where things are, and how to get in."""
    url = _url(host, port)
    announce(Home(home.absolute()), url)
    if dashboard:
        errors.print(f"The dashboard is at {url}; this opens it: meshtune open --home {home}", soft_wrap=True)
    else:
        errors.print(f"The REST API is at {url}v1; the dashboard is not built: `make dashboard`", soft_wrap=True)
    errors.print(f"For others, and for programs: meshtune token create NAME --scope read --home {home}", soft_wrap=True)
    if not _loopback(host):
        errors.print(
            f"--host {host} is reached by other machines, and what they send and get is not encrypted, tokens included:"
            " put a proxy with TLS before it.",
            style="yellow",
            soft_wrap=True,
        )


def _loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _url(host: str, port: int) -> str:
    """What a browser on this machine opens."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/"
