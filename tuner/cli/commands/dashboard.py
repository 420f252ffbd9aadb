"""`meshtune open`: a link by which a browser signs in to the dashboard of the service that runs on this home.

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
import sys
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from meshtune.tuner.access.tokens import (
    AuditRecord,
    Scope,
    Token,
    digest,
    expiry,
    new_secret,
    write_private,
)
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.cli.common import Refused, errors
from meshtune.tuner.cli.opening import open_service
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import NotFound

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
SIGN_IN_LIMIT_S = 20.0


def open_(home: Path, db: str, *, scope: Sequence[Scope], expires: str, url: str) -> None:
    if url and not url.startswith(("http://", "https://")):
        raise Refused(f"--url {url} is no http URL")
    now, secret = time.time(), new_secret()
    token = Token(
        name=_name(),
        sha256=digest(secret),
        scopes=frozenset(scope),
        created_at=now,
        expires_at=expiry(expires, now),
    )
    with open_service(home, db) as service:
        link = f"{(url or _address(service.home)).rstrip('/')}/#token={secret}"
        access = service.store.access
        with suppress(NotFound):
            access.revoke(token.name, now)
        access.create(token)
        detail = f"{', '.join(sorted(token.scopes))}; expires {expires}"
        access.record(AuditRecord(at=now, token="", action="open", object=token.name, detail=detail))
        sys.stdout.write(link + "\n")
        sys.stdout.flush()
        errors.print(f"who opens it is signed in as {token.name} ({detail})", soft_wrap=True)
        if home.is_dir() and any(os.environ.get(name) for name in DISPLAYS):
            _show(service, link, token.sha256)


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


def _address(home: Home) -> str:
    """Where the service of this home answers. Raises Refused where none runs, or it runs on another machine."""
    with suppress(FileNotFoundError), home.service.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found = json.load(file)  # noqa: TID251  # of the process that holds the lock
            if found["host"] == platform.node():
                return str(found["url"])
            raise Refused(
                f"the service of --home {home.root} runs on {found['host']}: run this there, or say by --url where a "
                "browser reaches it"
            ) from None
    raise Refused(f"no service runs on --home {home.root}; start one with `meshtune serve`, or name it by --url")


def _name() -> str:
    """The user's, as the operating system has it: one link a user, and campaigns that stay theirs with the next one."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may have users without a name
        user = f"{os.geteuid()}"
    return re.sub(r"[^A-Za-z0-9._@-]", "-", user).strip("._@-")[:50] + "-browser"


def _show(service: Service, link: str, sha256: str) -> None:
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
