"""A PostgreSQL server of the test's own, on a Unix socket in a folder of its own; it can be paused as a whole."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import pytest

START_LIMIT_S = 120
INITDB_OPTIONS = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")


class PostgresLab:
    """Runs while the `with` statement does. Skips the test where there are no server programs, fails it in CI."""

    def __enter__(self) -> PostgresLab:
        programs = _server_programs()
        if programs is None:
            reason = "no PostgreSQL server programs: initdb and postgres are neither on PATH nor in /usr/lib/postgresql"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        # A socket's path has at most 107 bytes; pytest's own temporary folders are too deep.
        self.folder = Path(tempfile.mkdtemp(prefix="mt-pg-", dir="/tmp"))
        try:
            self._start(programs)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)  # "fast shutdown": ends sessions, then itself
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://meshtune@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(host=str(self.folder), user="meshtune", dbname=database, autocommit=True)

    def create(self, database: str) -> str:
        """The URL of a new, empty database."""
        with self.connect() as admin:
            admin.execute(f"CREATE DATABASE {database}")
        return self.url(database)

    def drop(self, database: str) -> None:
        with self.connect() as admin:
            admin.execute(f"DROP DATABASE {database} WITH (FORCE)")

    def end_sessions(self, database: str) -> None:
        """Return once all its sessions are gone."""
        end = "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE datname = %s"  # waits so many ms
        with self.connect() as admin:
            while admin.execute(end, [database]).fetchone() is not None:
                pass

    def signal(self, number: signal.Signals) -> None:
        """To the server and all its backends: SIGSTOP pauses the database, SIGCONT lets it go on."""
        pid = self._process.pid
        os.kill(pid, number)  # first: a server that is stopped starts no others
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(ProcessLookupError):  # some live for a moment
                os.kill(int(child), number)

    def _start(self, programs: Path) -> None:
        user = _unprivileged()
        if user:
            os.chown(self.folder, user["user"], user["group"])
        common: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **user}
        made = subprocess.run(
            [programs / "initdb", "-D", self.folder / "data", "-U", "meshtune", *INITDB_OPTIONS],
            capture_output=True,
            text=True,
            timeout=120,
            **common,
        )
        assert made.returncode == 0, made.stderr
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "fsync": "off"}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        with (self.folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", self.folder / "data", *arguments], stdout=log, stderr=log, **common
            )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._process.kill()
                    told = (self.folder / "log").read_text()
                    raise AssertionError(f"PostgreSQL did not start:\n{told}") from None
                time.sleep(0.05)


def _server_programs() -> Path | None:
    """The folder with initdb and postgres."""
    found = [Path(path).resolve().parent for name in ("postgres", "initdb") if (path := shutil.which(name))]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if config := shutil.which("pg_config"):
        found.append(Path(subprocess.run([config, "--bindir"], capture_output=True, text=True).stdout.strip()))
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def _unprivileged() -> dict[str, Any]:
    """What Popen needs to leave root, which PostgreSQL refuses to run as."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise AssertionError("root, but there is neither a user postgres nor nobody")
