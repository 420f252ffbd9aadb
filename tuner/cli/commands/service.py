"""The commands that run a service: `serve`, `open`, `mcp`, `token create|list|revoke` and `db upgrade|backup|check`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshtune.runners.extras import require_extra
from meshtune.runners.processes.job_user import RUN_AS
from meshtune.tuner.access.tokens import DEFAULT_EXPIRES, NEVER, Scope
from meshtune.tuner.cli.common import WrongCall, console, errors, print_page
from meshtune.tuner.cli.options import DEFAULT_HOME, DatabaseOption, HomeOption, HomePlace, placed

if TYPE_CHECKING:
    from meshtune.tuner.access.tokens import Token
    from meshtune.tuner.service.service import Service

app = typer.Typer()
PANEL = "Service"
token_app = typer.Typer(no_args_is_help=True, help="Tokens for the REST API and the dashboard.")
db_app = typer.Typer(no_args_is_help=True, help="Upgrade, copy and check the database.")
app.add_typer(
    token_app, name="token", rich_help_panel=PANEL, short_help="Make, list and revoke tokens for the service."
)
app.add_typer(db_app, name="db", rich_help_panel=PANEL, short_help="Upgrade, copy and check the database.")
Name = Annotated[
    str, typer.Argument(help="Whose it is; campaigns that it creates carry this name.", show_default=False)
]
BROWSER_SCOPES = [Scope.READ_ALL, Scope.LAUNCH]
COLUMNS = (
    *("name", "scopes", "projects", "state", "expires", "last used"),
    *("campaigns", "trials / 24 h", "device-hours / 30 d"),
)
# For a database of some hundred gigabytes.
DUMP_LIMIT_S = 6 * 3600.0
# Printed when such a token is made.
COMMAND_MEANS = (
    "command: its specs run any program as the user of the jobs; unless the service was started with --run-as USER,"
    " these have the rights of the service, which is as much as admin (docs/how-to/access.md)"
)
# By name: this package knows nothing of the web.
SERVER = "meshtune.api.app"
RETENTION = "MESHTUNE_RETENTION"


@app.command(rich_help_panel=PANEL, short_help="Serve the REST API and the dashboard, and drive campaigns.")
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
    retention: Annotated[
        str, typer.Option(envvar=RETENTION, help="How long files of ended campaigns stay: 90d, 8w, or never.")
    ] = NEVER,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(envvar="MESHTUNE_LOG_FORMAT", help="For people or programs.")
    ] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="MESHTUNE_LOG_LEVEL", help="The least that is told."),
    ] = "info",
) -> None:
    """Serve the REST API and the dashboard, and drive every active campaign of this home."""
    from meshtune.runners.processes.job_user import job_user, shut_home
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.service.telemetry import set_up_logging

    set_up_logging(as_json=log_format == "json", level=log_level)
    os.environ[RUN_AS] = run_as
    user = job_user()
    if user is not None:
        home.absolute().parent.mkdir(parents=True, exist_ok=True)  # jobs pass through what is above the home
        os.umask(0o077)
    with open_service(HomePlace(home, db), create=True):
        pass  # a database that cannot be used is told here
    if user is not None:
        shut_home(home.resolve(), user)
    os.environ["MESHTUNE_HOME"] = str(home.absolute())
    if db:
        os.environ["MESHTUNE_DB"] = db
    os.environ["MESHTUNE_METRICS_OPEN"] = "1" if metrics_open else ""
    os.environ["MESHTUNE_PUBLIC_URL"] = public_url
    os.environ[RETENTION] = retention
    import_module(SERVER).run(host, port, lambda port, dashboard: _greet(host, port, home, dashboard))


def _greet(host: str, port: int, home: Path, dashboard: bool) -> None:
    """Say where things are, and how to get in."""
    from meshtune.tuner.campaign.campaign import Home
    from meshtune.tuner.cli.signing_in import announce

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
    with suppress(ValueError):
        return ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _url(host: str, port: int) -> str:
    """What a browser on this machine opens."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/"


@app.command("open", rich_help_panel=PANEL, short_help="Open the dashboard in a browser, signed in.")
@placed
def open_(
    place: HomePlace,
    scope: Annotated[list[Scope], typer.Option(help="What it allows; may be repeated.")] = BROWSER_SCOPES,
    expires: Annotated[str, typer.Option(help="12h, 90d, 8w, or never.")] = "12h",
    url: Annotated[
        str, typer.Option(help="Where the browser reaches the service; default: where the one of this home listens.")
    ] = "",
) -> None:
    """Open the dashboard, signed in by a link, which is printed too. It ends the one that was made before."""
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.cli.signing_in import DISPLAYS, address, browser_name, issued, show
    from meshtune.tuner.store import NotFound

    if url and not url.startswith(("http://", "https://")):
        raise WrongCall(f"--url {url} is no http URL")
    made = issued(browser_name(), scope, expires)
    with open_service(place) as service:
        link = f"{(url or address(service.home)).rstrip('/')}/#token={made.secret}"
        with suppress(NotFound):
            service.store.access.revoke(made.token.name, made.token.created_at)
        made.store(service, "open")
        sys.stdout.write(link + "\n")
        sys.stdout.flush()
        errors.print(f"who opens it is signed in as {made.token.name} ({made.detail})", soft_wrap=True)
        if place.home.is_dir() and any(os.environ.get(name) for name in DISPLAYS):
            show(service, link, made.token.sha256)


@app.command(rich_help_panel=PANEL, short_help="Serve a service's campaigns to agents, as tools.")
def mcp(server: Annotated[str, typer.Option(envvar="MESHTUNE_SERVER", help="Address of the service.")] = "") -> None:
    """Serve tools by the Model Context Protocol, on standard input and output, with the token of MESHTUNE_TOKEN."""
    require_extra("mcp", "meshtune mcp")
    import asyncio

    from meshtune.tuner.client.agent import serve

    asyncio.run(serve(server))


@app.command(rich_help_panel=PANEL, short_help="Show or remove files of ended campaigns; delete a campaign.")
@placed
def clean(
    place: HomePlace,
    campaign: Annotated[str, typer.Argument(help="Id of one to delete, with all that was measured.")] = "",
    retention: Annotated[str, typer.Option(envvar=RETENTION, help="Files stay so long after the end.")] = "30d",
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is shown.")] = False,
) -> None:
    """Show the logs, scripts and results that jobs left of campaigns which ended long ago. What was measured is in the
    database and stays; but with CAMPAIGN, this one is deleted, which must be over or unreadable."""
    from meshtune.tuner.access.tokens import expiry
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.service.cleaning import Leftovers

    retention_s = expiry(retention, 0.0, "--retention")
    with open_service(place) as service:
        if campaign:
            service.newest_event(campaign)  # raises NotFound
            if remove:
                service.delete(campaign)
            console.print(f"{campaign} {'is deleted' if remove else 'is deleted with --remove, and what was measured'}")
            return
        found = {} if retention_s is None else service.clean(retention_s, remove=remove)
    for campaign_id, left in found.items():
        console.print(f"{campaign_id}: {left}", soft_wrap=True)
    lefts = found.values()
    total = Leftovers(files=sum(left.files for left in lefts), size_bytes=sum(left.size_bytes for left in lefts))
    console.print(f"{'removed' if remove else 'with --remove this goes'}: {total}, of {len(found)} campaigns")


@token_app.command()
@placed
def create(
    name: Name,
    place: HomePlace,
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
) -> None:
    """Make a token and print it, once: it is kept nowhere."""
    from meshtune.tuner.access.tokens import Quotas, write_private
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.cli.signing_in import issued

    quotas = Quotas(campaigns=campaigns, trials=trials, device_hours=device_hours)
    made = issued(name, scope, expires, projects=project or [], quotas=quotas)
    if output is not None and output.exists():
        raise WrongCall(f"{output} is there already")
    with open_service(place, create=True) as service:
        made.store(service, "token create")
    if output is None:
        sys.stdout.write(made.secret + "\n")
        errors.print(f"the token {name} ({made.detail}) is shown this once", soft_wrap=True)
    else:
        write_private(output, made.secret + "\n")
        errors.print(f"wrote the token {name} ({made.detail}) to {output}", soft_wrap=True)
    if made.token.may(Scope.COMMAND) and not made.token.may(Scope.ADMIN):
        errors.print(COMMAND_MEANS, style="yellow", soft_wrap=True)


@token_app.command("list")
@placed
def list_tokens(place: HomePlace) -> None:
    """Show all tokens, those that open nothing any more included, and what of their quotas is used."""
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.cli.render.terminal import new_table

    now = time.time()
    with open_service(place) as service:
        table = new_table("", *COLUMNS, spare=[*COLUMNS[:0:-1]])
        wrong: list[str] = []
        for token in service.store.access.tokens(wrong):
            table.add_row(*_row(service, token, now))
    nothing = "there is no token yet; make one with `meshtune token create NAME --scope read:all`"
    console.print(table if table.rows or wrong else nothing)
    for words in wrong:
        errors.print(f"left out: {words}", style="yellow", soft_wrap=True, markup=False)


def _row(service: Service, token: Token, now: float) -> tuple[str, ...]:
    from meshtune.tuner.cli.signing_in import grants

    used, quotas = service.store.access.used(token.name, now), token.quotas

    def of(used: str, quota: float | None) -> str:
        return used if quota is None else f"{used} of {quota:g}"

    def when(at: float | None) -> str:
        return "never" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))

    return (
        token.name,
        *grants(token),
        token.refusal(now).removeprefix("the token ").removeprefix("was ").removeprefix("has ") or "valid",
        when(token.expires_at),
        when(token.last_used_at),
        of(f"{used.campaigns}", quotas.campaigns),
        of(f"{used.trials}", quotas.trials),
        of(f"{used.device_hours:.3g}", quotas.device_hours),
    )


@token_app.command()
@placed
def revoke(name: Name, place: HomePlace) -> None:
    """Let a token open nothing any more, within 5 seconds. Its campaigns go on."""
    from meshtune.tuner.access.tokens import AuditRecord
    from meshtune.tuner.cli.at_home import open_service

    now = time.time()
    with open_service(place) as service:
        service.store.access.revoke(name, now)
        service.store.access.record(AuditRecord(at=now, token="", action="token revoke", object=name))
    console.print(f"the token {name} is revoked")


@db_app.command()
@placed
def upgrade(
    place: HomePlace,
    no_copy: Annotated[bool, typer.Option("--no-copy", help="Without a copy of a SQLite file beside it.")] = False,
) -> None:
    """Bring the database to the newest schema. Every other command does so as well; this one says what it did."""
    from meshtune.tuner.cli.at_home import existing_database
    from meshtune.tuner.store import maintenance

    before, after = maintenance.upgrade(existing_database(place), copy=not no_copy)
    if before == after:
        console.print(f"the schema is {after} already, the newest")
    else:
        console.print(f"the schema was {before or 'none'} and is {after} now")


@db_app.command()
@placed
def backup(
    file: Annotated[Path, typer.Argument(help="Where to write the copy.", show_default=False)],
    place: HomePlace,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it is there.")] = False,
) -> None:
    """Copy the database as it is at one moment, while services go on; the copy is read once before it gets its name."""
    from meshtune.runners.command import call
    from meshtune.tuner.cli.at_home import existing_database
    from meshtune.tuner.store import StoreUnavailable, maintenance

    url = existing_database(place)
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
@placed
def check(place: HomePlace) -> None:
    """Look for damage, for rows that contradict each other, and for jobs in flight without a folder. Exit code 1 where
    something is wrong."""
    from meshtune.tuner.campaign.campaign import Home
    from meshtune.tuner.cli.at_home import existing_database
    from meshtune.tuner.store import maintenance

    report = maintenance.check(existing_database(place))
    folder = Home(place.home.absolute())
    lost = [name for campaign_id, name in report.in_flight if not folder.job(campaign_id, name).is_dir()]
    troubles = [*report.troubles, *(f"the job {name} is in flight, but its folder is gone" for name in lost)]
    print_page(troubles)
    rows = ", ".join(f"{count} {name}" for name, count in report.rows.items())
    console.print(f"schema {report.schema}: {rows}; {len(report.in_flight)} jobs in flight", soft_wrap=True)
    if troubles:
        console.print(f"{len(troubles)} problem{'s' if len(troubles) > 1 else ''}", style="red")
        raise typer.Exit(1)
    console.print("nothing is wrong")
