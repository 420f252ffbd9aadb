"""A real `meshtune serve` on a database, and a PostgreSQL server of one's own: started for a benchmark, then ended."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshtune.tuner.access.tokens import ALL_SCOPES, Scope, Token, digest, new_secret
from meshtune.tuner.store import Store

START_LIMIT_S = 240.0
# States of a campaign that it never leaves.
OVER = ("completed", "failed", "cancelled")
# No figure is about how fast one token may ask.
UNPACED = {
    f"MESHTUNE_{name}": "1000000000" for name in ("REQUESTS_PER_S", "REQUESTS_BURST", "POSTS_PER_S", "POSTS_BURST")
}


@dataclass(frozen=True, slots=True)
class Server:
    """host and port of a service that answers, a token with every scope, and its process."""

    host: str
    port: int
    token: str
    pid: int

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_s(self) -> float:
        """Processor time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def get(self, path: str) -> Any:
        """The answer's document."""
        return json.loads(self.text(path))

    def post(self, path: str, document: object, key: str = "") -> Any:
        """The answer's document. key: for idempotency."""
        return json.loads(self.text(path, json.dumps(document).encode(), {"Idempotency-Key": key} if key else {}))

    def is_over(self, campaign_id: str) -> bool:
        return self.get(f"/v1/campaigns/{campaign_id}")["state"] in OVER

    def text(
        self,
        path: str,
        body: bytes | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
        method: str | None = None,
    ) -> str:
        """The answer to a GET, or to a POST of this body, or another method. more: headers."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **more}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            text: str = response.read().decode()
            return text

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextmanager
def serving(database: str, home: Path, pace: Mapping[str, str] = UNPACED) -> Iterator[Server]:
    """The service over the database with this URL, until the end of the block. pace: the variables of its rates."""
    environment = {**without_ours(os.environ), **pace, "MESHTUNE_DB": database, "MESHTUNE_LOG_LEVEL": "warning"}
    token = new_token(database)
    port = free_port()
    log = home / "serve.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            meshtune("serve", "--port", str(port), "--home", str(home)),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        server = Server("127.0.0.1", port, token, process.pid)
        _await(server, process, log)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


class Postgres:
    """A server of one's own with an empty database and the settings it comes with, until `stop`. Raises
    FileNotFoundError where PostgreSQL's programs are not installed."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """environment: of the server; ours by default."""
        self._programs = _postgres_programs()
        # A socket's path has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="mt-pg-", dir="/tmp"))
        self._common: dict[str, Any] = {"cwd": self._folder, "stdin": subprocess.DEVNULL, **_unprivileged()}
        self._environment = environment
        if "user" in self._common:
            os.chown(self._folder, self._common["user"], self._common["group"])
        making = [str(self._programs / "initdb"), "-D", str(self._folder / "data"), "-U", "meshtune", "--auth=trust"]
        command = [*making, "--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, **self._common)
        self.url = f"postgresql://meshtune@/postgres?host={self._folder}"
        self.start()

    def start(self) -> None:
        """Return once it takes connections."""
        running = [
            str(self._programs / "postgres"),
            "-D",
            str(self._folder / "data"),
            "-h",
            "",
            "-k",
            str(self._folder),
        ]
        while True:
            self._process = subprocess.Popen(
                running,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                **self._common,
            )
            ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self._folder)]
            while self._process.poll() is None:
                if subprocess.run(ready, check=False).returncode == 0:
                    return
                time.sleep(0.1)
            time.sleep(0.2)  # backends of a killed one still hold its memory

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database on a server of its own. Raises FileNotFoundError, as `Postgres`."""
    server = Postgres()
    try:
        yield server.url
    finally:
        server.stop()


def new_token(database: str, scopes: frozenset[Scope] = ALL_SCOPES) -> str:
    """The secret of one that opens this."""
    now, secret = time.time(), new_secret()
    token = Token(
        name=f"benchmark-{time.time_ns()}",
        sha256=digest(secret),
        scopes=scopes,
        created_at=now,
        expires_at=None,
    )
    with Store.open(database) as store:
        store.access.create(token)
    return secret


def _await(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            server.get("/readyz")
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


def meshtune(*words: str) -> list[str]:
    """Its command line."""
    return [sys.executable, "-m", "meshtune.tuner.cli", *words]


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what another service of this user goes by."""
    return {name: value for name, value in environment.items() if not name.startswith("MESHTUNE_")}


def free_port() -> int:
    """A port of 127.0.0.1 for a server that sets SO_REUSEADDR, as most do. It stays bound here till this process ends,
    so that nobody else is given it before that server starts, nor while it is down."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port: int = held.getsockname()[1]
    held.detach()
    return port


def _postgres_programs() -> Path:
    found = [Path(path).resolve().parent for name in ("postgres", "initdb") if (path := shutil.which(name))]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    known = [folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()]
    if not known:
        raise FileNotFoundError("initdb and postgres are neither on PATH nor in /usr/lib/postgresql")
    return known[0]


def _unprivileged() -> dict[str, Any]:
    """What Popen needs to leave root, which PostgreSQL refuses to run as."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("postgres")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
