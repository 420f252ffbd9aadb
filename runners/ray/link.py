"""A link: this process's end of a driver, one for each cluster, shared by every runner object that wants the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from meshtune.runners.base import RunnerUnavailable

# A driver's imports and its connection take two seconds on an idle machine.
CONNECT_LIMIT_S = 60.0
ANSWER_LIMIT_S = 25.0


class Link:
    """Asks a driver, started on first use and again after its death. Safe for threads."""

    def __init__(self, address: str, log: Path) -> None:
        self._address = address
        self._log = log
        self._driver: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, namespace: str, verb: str, *arguments: Any) -> Any:
        """What the job manager of the namespace answers. Raises RunnerUnavailable."""
        with self._lock:
            if self._driver is None or self._driver.poll() is not None:
                self.end()
                self._start()
                try:
                    self._answer(CONNECT_LIMIT_S)
                except RunnerUnavailable:
                    self.end()  # one that is about to exit must not get the next question
                    raise
            return self._answer(ANSWER_LIMIT_S, (namespace, verb, arguments))

    def end(self) -> None:
        """End the driver."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        self._channel.close()
        try:
            driver.wait(5.0)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()

    def _start(self) -> None:
        self._channel, theirs = Pipe()
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with theirs, self._log.open("ab") as log:
                self._driver = subprocess.Popen(
                    [sys.executable, "-m", "meshtune.runners.ray.driver", str(theirs.fileno()), self._address],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                    # Ray puts a driver's folder on the module path of every worker: it must hold no modules.
                    cwd=self._log.parent,
                    env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                    start_new_session=True,
                )
        except OSError as error:
            raise RunnerUnavailable(f"the Ray driver cannot be started: {error}") from error

    def _answer(self, limit_s: float, request: tuple[Any, ...] | None = None) -> Any:
        """The driver's answer to a request; without one, its word that it is connected."""
        assert self._driver is not None
        failure = "has died"
        try:
            if request is not None:
                self._channel.send(request)
            if self._channel.poll(limit_s):
                answer, error = self._channel.recv()
                if error:
                    raise RunnerUnavailable(f"Ray: {error}")
                return answer
            failure = f"did not answer within {limit_s:g} s"
        except (EOFError, OSError):
            pass
        self._driver.kill()
        self.end()
        raise RunnerUnavailable(f"the Ray driver {failure}; see {self._log}")


class Links:
    """The links of this process, by the addresses of their clusters; each ends with its last user."""

    def __init__(self) -> None:
        self._links: dict[str, tuple[Link, int]] = {}
        self._lock = threading.Lock()

    def take(self, address: str, log: Path) -> Link:
        with self._lock:
            link, users = self._links.get(address) or (Link(address, log), 0)
            self._links[address] = (link, users + 1)
            return link

    def give_back(self, address: str) -> None:
        with self._lock:
            link, users = self._links.pop(address)
            if users > 1:
                self._links[address] = (link, users - 1)
                return
        link.end()


LINKS = Links()
