"""`meshtune serve` as a process: real jobs, a sudden death, a restart, a prompt end."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from service_lab import START_LIMIT_S
from service_process import free_port

from meshtune.tuner.campaign.home import Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.slow
ANSWER_LIMIT_S = 60.0
CAMPAIGN_LIMIT_S = 150.0
SPEC = {
    "name": "tiny",
    "model": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "vocab": 64, "seq_len": 8},
    "cluster": {"preset": "local-cpu", "devices_per_node": 1},
    "global_batch_size": 4,
    "search": "random",
    "workload": {"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 3}},
    "runner": {"kind": "local", "idle_s": 1},
    "budget": {"trials": 3},
    "confirm": 0,
}


def call(url: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def wait_for(condition: Callable[[], bool], limit_s: float, log: Path) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in {limit_s} s:\n{log.read_text()}"
        time.sleep(0.1)


@contextmanager
def serving(home: Path, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server that answers and trusts us, and its URL; killed at the end if it still lives."""
    port = free_port()
    options = ("--trust-loopback", *options)
    command = [
        sys.executable,
        "-m",
        "meshtune.tuner.cli.main",
        "serve",
        "--port",
        str(port),
        "--home",
        str(home),
        *options,
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return call(f"{url}/readyz")[0] == 200
        except OSError:
            return False

    try:
        wait_for(answers, START_LIMIT_S, log)
        yield process, url
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(ANSWER_LIMIT_S)


def local_servers(home: Path) -> list[int]:
    """The local runner's processes for this home."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"meshtune.runners.local.server" in words and any(word.startswith(os.fsencode(home)) for word in words):
            found.append(int(entry.name))
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose local runner is gone at the end."""
    home = tmp_path / "home"
    yield home
    deadline = time.monotonic() + 10
    while local_servers(home) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in local_servers(home):
        os.kill(process, signal.SIGKILL)


def test_a_real_campaign_survives_the_death_of_its_server(home, tmp_path):
    log = tmp_path / "log"
    with serving(home, log) as (process, url):
        status, created = call(f"{url}/v1/campaigns", SPEC)
        assert status == 201, created
        campaign = f"/v1/campaigns/{created['id']}"
        wait_for(lambda: bool(call(url + campaign)[1]["trials"]), CAMPAIGN_LIMIT_S, log)
        process.kill()
    with serving(home, log) as (process, url):
        wait_for(lambda: call(url + campaign)[1]["state"] == "completed", CAMPAIGN_LIMIT_S, log)
        trials = call(f"{url}{campaign}/trials")[1]["trials"]
        assert [trial["verdict"] for trial in trials] == ["ok"] * 3, trials
        assert [len(trial["attempts"]) for trial in trials] == [1, 1, 1]
        assert len({trial["plan_key"] for trial in trials}) == 3
        assert call(f"{url}{campaign}/best")[1]["recommendation"]["setting"]["trial"] in (0, 1, 2)
        kinds = [event["kind"] for event in call(f"{url}{campaign}/events")[1]]
        assert kinds.count("trial.submitted") == 3
        assert kinds[-1] == "campaign.completed"
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_server_with_streams_and_a_campaign_under_way_ends_promptly(home, tmp_path, ending):
    log, begun = tmp_path / "log", time.monotonic()
    with serving(home, log) as (process, url):
        start_s = time.monotonic() - begun
        status, created = call(f"{url}/v1/campaigns", SPEC | {"search": "deephyper"})
        assert status == 201, created
        idle = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        listeners = [Listener(url) for _ in range(10)]
        assert all(listener.ready.wait(ANSWER_LIMIT_S) for listener in listeners)
        before = time.monotonic()
        process.send_signal(ending)
        process.wait(ANSWER_LIMIT_S)
        assert time.monotonic() - before < max(2.0, start_s)  # a machine that has other work is as slow at both
        idle.close()
        for listener in listeners:
            listener.join(ANSWER_LIMIT_S)
        assert all(listener.clean for listener in listeners)
    assert "Traceback" not in log.read_text()
    assert "Cancel" not in log.read_text()  # as the framework says of requests that do not end


def test_a_taken_port_is_told_and_ends_the_server(home, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "meshtune.tuner.cli", "serve", "--port", port, "--home", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S)
    assert done.returncode != 0
    assert "address already in use" in done.stderr
    assert "Traceback" not in done.stderr


class Listener(threading.Thread):
    """A client of /v1/stream on a thread of its own: the ids that it heard, and whether its stream came to a clean
    end."""

    def __init__(self, url: str, after: int | None = None) -> None:
        super().__init__(daemon=True)
        self.ids: list[int] = []
        self.ready = threading.Event()
        self.clean = False
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        self._response = urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/stream", headers=headers), timeout=ANSWER_LIMIT_S
        )
        self.start()

    def run(self) -> None:
        id = 0
        with self._response, suppress(OSError, http.client.HTTPException):
            for line in self._response:
                name, _, value = line.decode().strip().partition(": ")
                if name == "id":
                    id = int(value)
                elif name == "event" and value == "ready":
                    self.ready.set()
                elif name == "event":
                    self.ids.append(id)
            self.clean = True


def event_ids(home: Path) -> list[int]:
    with Store.open(Home(home).database_url) as store:
        return [event.id for event in store.events(None)]


def test_a_stream_goes_on_without_gap_or_double_after_its_server_was_killed(home, tmp_path):
    log = tmp_path / "log"
    with serving(home, log) as (process, url):
        listener = Listener(url, after=0)
        assert listener.ready.wait(ANSWER_LIMIT_S)
        created = call(f"{url}/v1/campaigns", SPEC | {"budget": {"trials": 1000}})[1]  # not over before it is cancelled
        wait_for(lambda: len(listener.ids) > 3, CAMPAIGN_LIMIT_S, log)
        process.kill()
        process.wait(ANSWER_LIMIT_S)
        listener.join(ANSWER_LIMIT_S)
        heard = listener.ids
    # What a service that is gone wrote, or another one writes meanwhile, is in the table all the same.
    with Store.open(Home(home).database_url) as store:
        Service(store, Home(home)).cancel(created["id"])
    with serving(home, log) as (process, url):
        again = Listener(url, after=heard[-1])
        assert again.ready.wait(ANSWER_LIMIT_S)
        wait_for(lambda: call(f"{url}/v1/campaigns/{created['id']}")[1]["state"] == "cancelled", CAMPAIGN_LIMIT_S, log)
        wait_for(lambda: heard + again.ids == event_ids(home), ANSWER_LIMIT_S, log)
    assert len(set(heard + again.ids)) == len(heard + again.ids)
