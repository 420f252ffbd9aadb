"""`meshtune serve` as a process: real jobs, a sudden death, a restart, a prompt end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
START_LIMIT_S = 60.0
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(url: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
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
def serving(home: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server that answers, and its URL; killed at the end if it still lives."""
    port = free_port()
    command = [sys.executable, "-m", "tuner.cli", "serve", "--port", str(port), "--home", str(home)]
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
        process.wait(10)


def local_servers(home: Path) -> list[int]:
    """The local runner's processes for this home."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"runners.local_server" in words and any(word.startswith(os.fsencode(home)) for word in words):
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
def test_a_server_with_a_campaign_under_way_ends_promptly(home, tmp_path, ending):
    log = tmp_path / "log"
    with serving(home, log) as (process, url):
        status, created = call(f"{url}/v1/campaigns", SPEC | {"search": "deephyper"})
        assert status == 201, created
        idle = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        before = time.monotonic()
        process.send_signal(ending)
        process.wait(10)
        assert time.monotonic() - before < 2.0
        idle.close()
    assert "Traceback" not in log.read_text()


def test_a_taken_port_is_told_and_ends_the_server(home, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "tuner.cli", "serve", "--port", port, "--home", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S)
    assert done.returncode != 0
    assert "address already in use" in done.stderr
    assert "Traceback" not in done.stderr
