"""`meshtune serve`: the REST API and the dashboard, and the loop that drives every active campaign of this home."""

from __future__ import annotations

import os
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli.common import DEFAULT_HOME, DatabaseOption, HomeOption, Refused, errors, open_service
from meshtune.tuner.service import logging
from meshtune.tuner.service.logging import LogFormat, LogLevel

# By name: this package knows nothing of the web.
SERVER = "meshtune.api.app"


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8000,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    trust_loopback: Annotated[
        bool,
        typer.Option(
            "--trust-loopback", envvar="MESHTUNE_TRUST_LOOPBACK", help="Who is on this machine needs no token."
        ),
    ] = False,
    metrics_open: Annotated[
        bool, typer.Option("--metrics-open", envvar="MESHTUNE_METRICS_OPEN", help="/metrics needs no token.")
    ] = False,
    public_url: Annotated[
        str, typer.Option(envvar="MESHTUNE_PUBLIC_URL", help="Where jobs reach this service; none: they do not.")
    ] = "",
    log_format: Annotated[LogFormat, typer.Option(envvar="MESHTUNE_LOG_FORMAT", help="For people or programs.")] = (
        LogFormat.TEXT
    ),
    log_level: Annotated[LogLevel, typer.Option(envvar="MESHTUNE_LOG_LEVEL", help="The least that is told.")] = (
        LogLevel.INFO
    ),
) -> None:
    """Serve the REST API and the dashboard, and drive every active campaign of this home."""
    if trust_loopback and not _loopback(host):
        raise Refused(f"--trust-loopback needs an address of this machine alone, such as 127.0.0.1, not --host {host}")
    logging.set_up(log_format, log_level)
    with open_service(home, db, create=True) as service:  # a database that cannot be used is told here
        first = not service.store.access.tokens() and not trust_loopback
    os.environ["MESHTUNE_HOME"] = str(home.absolute())
    if db:
        os.environ["MESHTUNE_DB"] = db
    os.environ["MESHTUNE_TRUST_LOOPBACK"] = "1" if trust_loopback else ""
    os.environ["MESHTUNE_METRICS_OPEN"] = "1" if metrics_open else ""
    os.environ["MESHTUNE_PUBLIC_URL"] = public_url
    import_module(SERVER).run(host, port, lambda dashboard: _greet(host, port, home, first, dashboard))


def _greet(host: str, port: int, home: Path, first: bool, dashboard: bool) -> None:
    """Say where things are, and what is still to do. first: nobody has a token, and nobody is let in without."""
    what = "The dashboard" if dashboard else "The REST API"
    errors.print(f"{what} is at {_url(host, port)}" if port else f"{what} is where the log says.")
    if not dashboard:
        errors.print("The dashboard is not built: `cd api/web && npm ci && npm run build`.")
    if first:
        create = f"meshtune token create me --scope read --scope launch --home {home}"
        errors.print(f"Nobody has a token yet; this makes one: {create}", soft_wrap=True)
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
