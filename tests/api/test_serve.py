"""`meshtune serve` as a process: real jobs, a sudden death, a restart, a prompt end."""

import http.client
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from service_lab import ANSWER_LIMIT_S, START_LIMIT_S, ServiceLab
from service_process import meshtune
from specs import simulated, tiny

from meshtune.api.app import DIED
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

pytestmark = pytest.mark.slow
CAMPAIGN_LIMIT_S = 150.0
SIMULATED = simulated(budget={"trials": 2}, confirm=0)
SPEC = tiny(
    global_batch_size=4,
    workload={"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 3}},
    runner={"kind": "local", "idle_s": 1},
    budget={"trials": 3},
)


def local_servers(home: Path) -> list[int]:
    """The local runner's processes for this home."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"meshtune.runners.schedulers.local.server" in words and any(
                word.startswith(os.fsencode(home)) for word in words
            ):
                found.append(int(entry.name))
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceLab]:
    """Not started; its local runner is gone at the end."""
    lab = ServiceLab(tmp_path)
    yield lab
    lab.__exit__()
    deadline = time.monotonic() + 10
    while local_servers(lab.home) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in local_servers(lab.home):
        os.kill(process, signal.SIGKILL)


class Listener(threading.Thread):
    """A client of /v1/stream: the ids that it heard, and whether its stream came to a clean end."""

    def __init__(self, service: ServiceLab, after: int | None = None) -> None:
        super().__init__(daemon=True)
        self.ids: list[int] = []
        self.ready = threading.Event()
        self.clean = False
        headers = {"Authorization": f"Bearer {service.token}"}
        headers |= {} if after is None else {"Last-Event-ID": str(after)}
        request = urllib.request.Request(f"{service.url}/v1/stream", headers=headers)
        self._response = urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S)
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


def test_a_campaign_and_its_stream_go_on_without_gap_or_double_after_the_server_was_killed(service):
    service.start()
    listener = Listener(service, after=0)
    assert listener.ready.wait(ANSWER_LIMIT_S)
    id = service.call("POST", "/v1/campaigns", SPEC)["id"]
    service.wait(lambda: len(listener.ids) > 2, CAMPAIGN_LIMIT_S)
    service.kill()
    listener.join(ANSWER_LIMIT_S)
    heard = listener.ids
    service.start()
    again = Listener(service, after=heard[-1])
    service.wait_state(id, "completed", limit_s=CAMPAIGN_LIMIT_S)
    trials = service.call("GET", f"/v1/campaigns/{id}/trials")["trials"]
    assert [trial["verdict"] for trial in trials] == ["ok"] * 3, trials
    assert [len(trial["attempts"]) for trial in trials] == [1, 1, 1]
    assert len({trial["plan_key"] for trial in trials}) == 3
    kinds = [event["kind"] for event in service.call("GET", f"/v1/campaigns/{id}/events")["events"]]
    assert kinds.count("trial.submitted") == 3
    assert kinds[-1] == "campaign.completed"
    with Store.open(Home(service.home).database_url) as store:
        service.wait(lambda: heard + again.ids == [event.id for event in store.events(None)], ANSWER_LIMIT_S)
    assert "Traceback" not in service.log.read_text()


@pytest.mark.parametrize("ending", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_server_with_streams_and_a_campaign_under_way_ends_promptly(service, ending):
    begun = time.monotonic()
    service.start()
    start_s = time.monotonic() - begun
    service.call("POST", "/v1/campaigns", SPEC | {"search": "deephyper"})
    with socket.create_connection(("127.0.0.1", service.port)):  # which asks for nothing
        listeners = [Listener(service) for _ in range(10)]
        assert all(listener.ready.wait(ANSWER_LIMIT_S) for listener in listeners)
        # A machine that has other work is as slow at both.
        assert service.kill(ending, ANSWER_LIMIT_S) < max(2.0, start_s)
    for listener in listeners:
        listener.join(ANSWER_LIMIT_S)
    assert all(listener.clean for listener in listeners)
    assert "Traceback" not in service.log.read_text()
    assert "Cancel" not in service.log.read_text()  # as the framework says of requests that do not end


@pytest.mark.parametrize("fault", ["killed before acting", "killed before answering"])
def test_after_a_kill_a_post_with_a_key_is_answered_within_seconds_and_has_acted_once(service, fault):
    service.start(fault=fault)
    service.strike()
    with pytest.raises(OSError):
        service.ask("POST", "/v1/campaigns", SIMULATED, **{"idempotency-key": "a"})
    assert service.wait_end() == -signal.SIGKILL
    service.start()
    begun = time.monotonic()
    first, again = (service.ask("POST", "/v1/campaigns", SIMULATED, **{"idempotency-key": "a"}) for _ in range(2))
    assert time.monotonic() - begun < 20.0
    assert first == again
    assert first[0] == 201
    assert [one["id"] for one in service.call("GET", "/v1/campaigns")["campaigns"]] == [first[1]["id"]]


@pytest.mark.parametrize(
    "fault",
    ["the driver dies", "the reader of events dies", pytest.param("the heartbeat dies", marks=pytest.mark.long)],
)
def test_a_thread_that_dies_takes_the_process_with_it(service, fault):
    service.start(fault=fault)
    service.strike()
    with suppress(OSError):  # it may have ended
        service.ask("POST", "/v1/campaigns", SIMULATED)
    assert service.wait_end() == DIED
    log = service.log.read_text()
    assert "MemoryError: for a test" in log
    assert "has died, and the service with it" in log


def test_a_taken_port_is_told_and_ends_the_server(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = meshtune("serve", "--port", str(taken.getsockname()[1]), "--home", str(tmp_path / "home"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S)
    assert done.returncode != 0
    assert "address already in use" in done.stderr
    assert "Traceback" not in done.stderr
