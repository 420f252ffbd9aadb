"""Tokens made, and the link of `meshtune open`, by which a browser signs in to the dashboard of this home's service.

Its token stands behind the `#`: browsers send that to no server, and the page takes it out of the address. The service
is found by HOME/service.json, which it keeps locked while it lives. An address that a dead one left there is another
program's by now, perhaps another user's, who shall not get the token.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import platform
import pwd
import re
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from meshtune.tuner.access.tokens import AuditRecord, Quotas, Scope, Token, digest, expiry, new_secret, write_private
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.cli.common import WrongCall, errors
from meshtune.tuner.service.service import Service

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
SIGN_IN_LIMIT_S = 20.0
NO_QUOTAS = Quotas()


@dataclass(frozen=True, slots=True)
class Issued:
    """A token that is not stored yet. detail: what it allows, in words."""

    token: Token
    secret: str
    detail: str

    def store(self, service: Service, action: str) -> None:
        """action: of the record of who did what."""
        made = self.token
        service.store.access.create(made)
        record = AuditRecord(at=made.created_at, token="", action=action, object=made.name, detail=self.detail)
        service.store.access.record(record)


def issued(
    name: str, scopes: Sequence[Scope], expires: str, *, projects: Sequence[str] = (), quotas: Quotas = NO_QUOTAS
) -> Issued:
    now, secret = time.time(), new_secret()
    token = Token(
        name=name,
        sha256=digest(secret),
        scopes=frozenset(scopes),
        projects=frozenset(projects),
        created_at=now,
        expires_at=expiry(expires, now),
        quotas=quotas,
    )
    return Issued(token, secret, "; ".join([*filter(None, grants(token)), f"expires {expires}"]))


def grants(token: Token) -> tuple[str, str]:
    """The scopes and the projects, in words."""
    return ", ".join(sorted(token.scopes)), ", ".join(sorted(token.projects))


def announce(home: Home, url: str) -> None:
    """Write where the service of this process answers, for `meshtune open`, until the process ends.

    Of several services on one home the first is known. Where the file cannot be written, a message says so.
    """
    try:
        # Never closed: the kernel gives the lock back when the process has ended, in whatever way.
        descriptor = os.open(home.service, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"url": url, "host": platform.node(), "pid": os.getpid()}).encode(), 0)
    except OSError as error:
        errors.print(f"{home.service}: {error.strerror}: `meshtune open` needs --url {url}", style="yellow")


def address(home: Home) -> str:
    """Where the service of this home answers. Raises WrongCall where none runs, or it runs on another machine."""
    with suppress(FileNotFoundError), home.service.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            service = json.load(file)  # noqa: TID251  # of the process that holds the lock
            if service["host"] == platform.node():
                return str(service["url"])
            raise WrongCall(
                f"the service of --home {home.root} runs on {service['host']}: run this there, or say by --url where a "
                "browser reaches it"
            ) from None
    raise WrongCall(f"no service runs on --home {home.root}; start one with `meshtune serve`, or name it by --url")


def browser_name() -> str:
    """The user's, as the operating system has it: one link a user, and campaigns that stay theirs with the next one."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may have users without a name
        user = f"{os.geteuid()}"
    return re.sub(r"[^A-Za-z0-9._@-]", "-", user).strip("._@-")[:50] + "-browser"


def show(service: Service, link: str, sha256: str) -> None:
    """Open the link in a browser, by way of a file that only this user can read: the process list shows everybody what
    a browser was started with. The file goes when the browser has signed in."""
    page = service.home.root / ".open.html"
    try:
        browser = webbrowser.get()
        write_private(page, f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}">\n')
        deadline = time.monotonic() + (SIGN_IN_LIMIT_S if browser.open(page.as_uri()) else 0)
        while time.monotonic() < deadline:
            token = service.store.access.by_digest(sha256)
            if token is None or token.last_used_at is not None:
                return
            time.sleep(0.2)
        errors.print("no browser has signed in; open the link in one")
    except webbrowser.Error:
        return  # none is installed
    finally:
        page.unlink(missing_ok=True)
