"""The commands `token create`, `token list` and `token revoke`: who may use the service, and for what."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.access.audit import AuditRecord
from meshtune.tuner.access.credentials import write_private
from meshtune.tuner.access.tokens import DEFAULT_EXPIRES, Quotas, Scope, Token, digest, expiry, new_secret
from meshtune.tuner.cli.common import DEFAULT_HOME, DatabaseOption, HomeOption, Refused, console, errors, open_service
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import AlreadyExists, NotFound

token_app = typer.Typer(no_args_is_help=True, help="Tokens for the REST API and the dashboard.")
COLUMNS = ("name", "scopes", "state", "expires", "last used", "campaigns", "trials / 24 h", "device-hours / 30 d")
Name = Annotated[
    str, typer.Argument(help="Whose it is; campaigns that it creates carry this name.", show_default=False)
]


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
    try:
        token = Token(
            name=name,
            sha256=digest(secret),
            scopes=frozenset(scope),
            created_at=now,
            expires_at=expiry(expires, now),
            quotas=Quotas(campaigns=campaigns, trials=trials, device_hours=device_hours),
        )
    except InvalidValue as error:
        raise Refused(str(error)) from None
    if output is not None and output.exists():
        raise Refused(f"{output} is there already")
    with open_service(home, db, create=True) as service:
        try:
            service.store.access.create(token)
        except AlreadyExists as taken:
            raise Refused(str(taken)) from None
        detail = f"{', '.join(sorted(token.scopes))}; expires {expires}"
        service.store.access.record(AuditRecord(at=now, token="", action="token create", object=name, detail=detail))
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
        tokens = service.store.access.tokens()
        table = Table(*COLUMNS)
        for token in tokens:
            table.add_row(*_row(service, token, now))
    if tokens:
        console.print(table)
    else:
        console.print("there is no token yet; make one with `meshtune token create NAME --scope read`")


@token_app.command()
def revoke(name: Name, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Let a token open nothing any more, within 5 seconds. Its campaigns go on."""
    now = time.time()
    with open_service(home, db) as service:
        try:
            service.store.access.revoke(name, now)
        except NotFound as unknown:
            raise Refused(str(unknown)) from None
        service.store.access.record(AuditRecord(at=now, token="", action="token revoke", object=name))
    console.print(f"the token {name} opens nothing any more")


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
