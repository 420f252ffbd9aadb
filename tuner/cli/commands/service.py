"""The commands that run a service: `serve`, `token create|list|revoke` and `db upgrade|backup|check`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path

import typer
from rich.table import Table

from meshtune.runners.processes.command import call
from meshtune.runners.processes.job_user import RUN_AS, job_user, shut_home
from meshtune.tuner.access.tokens import (
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
from meshtune.tuner.cli.common import Refused, console, errors
from meshtune.tuner.cli.opening import existing_database, open_service
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.telemetry import set_up_logging
from meshtune.tuner.store import StoreUnavailable, maintenance

COLUMNS = (
    "name",
    "scopes",
    "projects",
    "state",
    "expires",
    "last used",
    "campaigns",
    "trials / 24 h",
    "device-hours / 30 d",
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


def create(
    name: str,
    scope: Sequence[Scope],
    home: Path,
    db: str,
    *,
    projects: Sequence[str],
    expires: str,
    campaigns: int | None,
    trials: int | None,
    device_hours: float | None,
    output: Path | None,
) -> None:
    now, secret = time.time(), new_secret()
    token = Token(
        name=name,
        sha256=digest(secret),
        scopes=frozenset(scope),
        projects=frozenset(projects),
        created_at=now,
        expires_at=expiry(expires, now),
        quotas=Quotas(campaigns=campaigns, trials=trials, device_hours=device_hours),
    )
    if output is not None and output.exists():
        raise Refused(f"{output} is there already")
    with open_service(home, db, create=True) as service:
        service.store.access.create(token)
        detail = "; ".join([*filter(None, _grants(token)), f"expires {expires}"])
        service.store.access.record(AuditRecord(at=now, token="", action="token create", object=name, detail=detail))
    if output is None:
        sys.stdout.write(secret + "\n")
        errors.print(f"the token {name} ({detail}) is shown this once", soft_wrap=True)
    else:
        write_private(output, secret + "\n")
        errors.print(f"wrote the token {name} ({detail}) to {output}", soft_wrap=True)
    if token.may(Scope.COMMAND) and not token.may(Scope.ADMIN):
        errors.print(COMMAND_MEANS, style="yellow", soft_wrap=True)


def list_tokens(home: Path, db: str) -> None:
    now = time.time()
    with open_service(home, db) as service:
        table = Table(*COLUMNS)
        for token in service.store.access.tokens():
            table.add_row(*_row(service, token, now))
    nothing = "there is no token yet; make one with `meshtune token create NAME --scope read:all`"
    console.print(table if table.rows else nothing)


def revoke(name: str, home: Path, db: str) -> None:
    now = time.time()
    with open_service(home, db) as service:
        service.store.access.revoke(name, now)
        service.store.access.record(AuditRecord(at=now, token="", action="token revoke", object=name))
    console.print(f"the token {name} is revoked")


def _grants(token: Token) -> tuple[str, str]:
    """The scopes and the projects, in words."""
    return ", ".join(sorted(token.scopes)), ", ".join(sorted(token.projects))


def _row(service: Service, token: Token, now: float) -> tuple[str, ...]:
    used, quotas = service.store.access.used(token.name, now), token.quotas

    def of(used: str, quota: float | None) -> str:
        return used if quota is None else f"{used} of {quota:g}"

    def when(at: float | None) -> str:
        return "never" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))

    return (
        token.name,
        *_grants(token),
        token.refusal(now).removeprefix("the token ").removeprefix("was ").removeprefix("has ") or "valid",
        when(token.expires_at),
        when(token.last_used_at),
        of(f"{used.campaigns}", quotas.campaigns),
        of(f"{used.trials}", quotas.trials),
        of(f"{used.device_hours:.3g}", quotas.device_hours),
    )


def upgrade(home: Path, db: str) -> None:
    before, after = maintenance.upgrade(existing_database(home, db))
    if before == after:
        console.print(f"the schema is {after} already, the newest")
    else:
        console.print(f"the schema was {before or 'none'} and is {after} now")


def backup(file: Path, home: Path, db: str, *, force: bool) -> None:
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


def check(home: Path, db: str) -> None:
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
    home: Path,
    db: str,
    *,
    host: str,
    port: int,
    metrics_open: bool,
    public_url: str,
    run_as: str,
    log_json: bool,
    log_level: str,
) -> None:
    set_up_logging(as_json=log_json, level=log_level)
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
