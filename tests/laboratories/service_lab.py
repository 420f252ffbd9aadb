"""A real `meshtune serve` on this machine, with a token of every scope: started, killed, started again on one home.

    with ServiceLab(folder) as service:
        service.call("GET", "/v1/campaigns"); service.kill(); service.start()

The port stays the same over restarts, as pages that are open expect. What the service says is in `log`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from new_tokens import new_token
from service_process import free_port, meshtune, without_ours

from meshtune.tuner.access.home_folder import PRIVATE, prepare_home
from meshtune.tuner.access.tokens import UNLIMITED, Quotas, Scope
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

# A machine that does other things as well answers late.
START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 60.0
FAULTY = Path(__file__).with_name("faulty_service.py")


class ServiceLab:
    """One home and one port, and the process that serves them while there is one. db: its database, else the home's."""

    def __init__(self, folder: Path, db: str = "") -> None:
        self.home, self._db = folder / "home", db
        self.log = folder / "serve.log"
        self._strikes = folder / "strikes"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = self.new_token("lab", "read", "launch", "command", "admin")
        self.process: subprocess.Popen[bytes] | None = None

    def new_token(self, name: str, *scopes: str, quotas: Quotas = UNLIMITED) -> str:
        """As `meshtune token create` makes one, in this process."""
        home = Home(self.home)
        prepare_home(home, PRIVATE)
        with Store.open(self._db or home.database_url) as store:
            header = new_token(store, name, *map(Scope, scopes), quotas=quotas)
        return header["Authorization"].removeprefix("Bearer ")

    def start(self, *options: str, fault: str = "") -> None:
        """Return once it is ready. fault: of `faulty_service`, which strikes from `strike` on."""
        command = meshtune("serve", "--port", str(self.port), "--home", str(self.home), *options)
        command += ["--db", self._db] if self._db else []
        if fault:
            self._strikes.unlink(missing_ok=True)
            command = [sys.executable, str(FAULTY), fault, str(self._strikes), *command[3:]]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=without_ours(os.environ)
            )
        self.wait(self._ready, START_LIMIT_S)

    def strike(self) -> None:
        """From now on the fault strikes."""
        self._strikes.touch()

    def wait_end(self) -> int:
        """The status with which the process ended by itself."""
        assert self.process is not None
        process, self.process = self.process, None
        return process.wait(ANSWER_LIMIT_S)

    def kill(self, sent: signal.Signals = signal.SIGKILL, limit_s: float = 30.0) -> float:
        """End it by a signal; the seconds until it was gone."""
        assert self.process is not None
        before = time.monotonic()
        self.process.send_signal(sent)
        self.process.wait(limit_s)
        self.process = None
        return time.monotonic() - before

    def completed(self, spec: dict[str, Any] | str) -> str:
        """The id of a campaign of this spec, or of one in YAML, once it is over."""
        kind = {"content-type": "application/yaml"} if isinstance(spec, str) else {}
        id: str = self.call("POST", "/v1/campaigns", spec, **kind)["id"]
        self.wait_state(id, "completed")
        return id

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer's document; fails on any status but 2xx. body: a document, or a text as it is."""
        status, answer = self.ask(method, path, body, **headers)
        assert 200 <= status < 300, (status, answer)
        return answer

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and document of the answer."""
        sent = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Until the condition holds; fails with the service's log when it does not in time."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen in {limit_s} s:\n{self.log.read_text()[-5000:]}"
            time.sleep(0.1)

    def wait_state(self, campaign_id: str, *states: str, limit_s: float = 120.0) -> None:
        """Until the campaign is in one of these states."""
        self.wait(lambda: self.call("GET", f"/v1/campaigns/{campaign_id}")["state"] in states, limit_s)

    def __enter__(self) -> ServiceLab:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill(signal.SIGTERM)

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False
