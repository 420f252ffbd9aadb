"""A link: this process's end of a driver, one for each cluster, shared by every runner object that wants the same."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshtune.runners.base import RunnerUnavailable

# Starting a cluster takes five seconds on an idle machine, and forty on a very busy one.
CONNECT_LIMIT_S = 120.0
ANSWER_LIMIT_S = 25.0


class Link:
    """Asks a driver, started on first use and again after its death. May be used from several threads.

    arguments: the driver's, which say where the cluster is. log: where the driver and Ray may write.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = arguments
        # Ray protects a cluster of one machine by a token, but a driver looks for it only where it is told to.
        token = {"RAY_AUTH_MODE": "token"} if "--local" in arguments else {}
        self._environment = {**token, **os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        self._log = log
        self._driver: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._lock = threading.Lock()

    def ask(self, namespace: str, verb: str, *arguments: Any) -> Any:
        """What the job manager of the namespace answers. Raises RunnerUnavailable."""
        with self._lock:
            driver = self._connected()
            request = {"namespace": namespace, "verb": verb, "arguments": arguments}
            try:
                assert driver.stdin is not None
                driver.stdin.write(json.dumps(request).encode() + b"\n")
                driver.stdin.flush()
            except OSError:
                self.end()
                raise RunnerUnavailable(f"the Ray driver has died; see {self._log}") from None
            return self._answer(driver, ANSWER_LIMIT_S)

    def end(self) -> None:
        """End the driver."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        assert driver.stdin is not None
        assert driver.stdout is not None
        with suppress(OSError):
            driver.stdin.close()
        try:
            driver.wait(5.0)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
        driver.stdout.close()

    def _connected(self) -> subprocess.Popen[bytes]:
        if self._driver is not None and self._driver.poll() is None:
            return self._driver
        self.end()
        self._heard = b""
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._driver = subprocess.Popen(
                    [sys.executable, "-m", "meshtune.runners.ray.driver", *self._arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    # Ray puts a driver's folder on the module path of every worker: it must hold no modules.
                    cwd=self._log.parent,
                    env=self._environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise RunnerUnavailable(f"the Ray driver cannot be started: {error}") from error
        self._answer(self._driver, CONNECT_LIMIT_S)
        return self._driver

    def _answer(self, driver: subprocess.Popen[bytes], limit_s: float) -> Any:
        assert driver.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._heard:
            readable, _, _ = select.select([driver.stdout], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(driver.stdout.fileno(), 65536) if readable else b""
            if not more:
                driver.kill()
                self.end()
                told = "has died" if readable else f"did not answer within {limit_s:g} s"
                raise RunnerUnavailable(f"the Ray driver {told}; see {self._log}")
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        document = json.loads(line)
        if "error" in document:
            raise RunnerUnavailable(f"Ray: {document['error']}")
        return document["answer"]


class Links:
    """The links of this process, by what their drivers were told; each ends with its last user."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, ...], tuple[Link, int]] = {}
        self._lock = threading.Lock()

    def take(self, arguments: tuple[str, ...], log: Path) -> Link:
        with self._lock:
            link, users = self._links.get(arguments) or (Link(arguments, log), 0)
            self._links[arguments] = (link, users + 1)
            return link

    def give_back(self, arguments: tuple[str, ...]) -> None:
        with self._lock:
            link, users = self._links.pop(arguments)
            if users > 1:
                self._links[arguments] = (link, users - 1)
                return
        link.end()


LINKS = Links()
