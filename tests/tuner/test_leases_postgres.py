"""Several service processes on one PostgreSQL: one is killed, stopped, or the database is silent; nothing is doubled.

The jobs are simulated; the runner notes each that it really starts, and that is held against what the store says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_lab import PostgresLab

from meshtune.runners.base import JobState
from meshtune.runners.simulated.runner import JOBS, OVER, SimulatedOptions, SimulatedRunner
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.campaign.trial import Trial, TrialState
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "laboratories" / "leased_service.py"
LEASE_S = 2.0
SPEC: dict[str, Any] = {
    "name": "leased",
    "model": "gpt-1t",
    "cluster": {"preset": "frontier", "nodes": 384},
    "global_batch_size": 9600,
    "space": {"tp": [4, 8], "pp": [64, 128], "micro_batch_size": [1, 2], "zero_stage": [1], "recompute": ["full"]},
    "workload": "simulated",
    "search": "random",
    "confirm": 0,
    "warm_start": False,
    "trial": {"time_limit_s": 1e6},
}


class Site:
    """One database and one home, and the services that share them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.home = url, Home(folder)
        self.store = Store.open(url)
        self.services: list[subprocess.Popen[bytes]] = []

    def create(self, *, trials: int, seconds: float, parallel: int) -> str:
        runner = {"kind": "simulated", "seconds_per_trial": seconds, "slots": 100}
        spec = {**SPEC, "runner": runner, "budget": {"trials": trials}, "parallel": parallel}
        return Service(self.store, self.home).create(spec).id

    def start_two(self) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        """Two services that know of each other, so that they share what comes."""
        both = self.start(), self.start()
        await_(lambda: self.store.leases.drivers().servers == 2, "two services serve")
        return both

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), self.url, str(self.home.root), str(LEASE_S)]
        service = subprocess.Popen(command, env={**os.environ}, cwd=self.home.root)
        self.services.append(service)
        return service

    def close(self) -> None:
        for service in self.services:
            service.kill()
            service.wait()
        self.store.close()

    def create_for_both(self, count: int, *services: subprocess.Popen[bytes], **options: Any) -> list[str]:
        """So many campaigns; once each of these services has sent a job, until when none ends."""
        (self.home.root / "hold").touch()
        ids = [self.create(**options) for _ in range(count)]
        await_(lambda: {each.pid for each in services} <= {pid for pid, _ in self.sent()}, "both drive")
        (self.home.root / "hold").unlink()
        return ids

    def drivers(self, pid: int) -> list[str]:
        """The campaigns that this process drives."""
        return [id for id, driver in self.store.leases.drivers().by_campaign.items() if f":{pid}:" in driver]

    def campaign(self, id: str) -> Campaign:
        return self.store.campaign(id)

    def trials(self, id: str) -> list[Trial]:
        return self.store.trials(id)

    def sent(self) -> list[tuple[int, str]]:
        """What services noted of the jobs that they sent: the process and the job's name."""
        noted = self.home.root / "sent"
        lines = [line.split() for line in noted.read_text().splitlines()] if noted.exists() else []
        return [(int(pid), name) for pid, name in lines]

    def check_truth(self, *ids: str, given_up: int = 0) -> None:
        """Each campaign is complete, and what the runner started is what the store says. given_up: jobs that were
        called back, since their attempt was another's by then."""
        assert max(Counter(name for _, name in self.sent()).values()) == 1
        root = self.home.runner("simulated")
        started = {path.name for folder in (JOBS, OVER) for path in (root / folder).glob("*")}
        told: set[str] = set()
        for id in ids:
            campaign, trials = self.campaign(id), self.trials(id)
            assert campaign.state is CampaignState.COMPLETED
            assert campaign.reason == f"the budget of {campaign.spec.budget.trials} trials is spent"
            assert [str(trial.verdict) for trial in trials] == ["ok"] * (campaign.spec.budget.trials or 0)
            assert len({trial.plan for trial in trials}) == len(trials)
            told |= {each.job_name for trial in trials for each in trial.attempts if each.job_id is not None}
            ends = Counter(
                (e.data["number"], e.data["attempt"]) for e in self.store.events(id) if e.kind == "trial.done"
            )
            assert ends == {(trial.number, each.number): 1 for trial in trials for each in trial.attempts}
        assert started >= told
        assert len(started - told) == given_up
        runner = SimulatedRunner(root, SimulatedOptions())
        await_(
            lambda: {each.state for each in runner.poll(list(started - told)).values()} <= {JobState.CANCELLED},
            "jobs are called back",
        )


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresLab]:
    with PostgresLab() as lab:
        yield lab


@pytest.fixture
def site(server: PostgresLab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    name = f"leases{abs(hash(request.node.name))}"
    site = Site(server.create(name), tmp_path)
    yield site
    site.close()
    server.drop(name)


def await_(holds: Callable[[], object], what: str, limit_s: float = 60.0) -> float:
    """Wait until it holds; the seconds that it took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < limit_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - begun


def over(site: Site, ids: list[str]) -> bool:
    return all(site.campaign(id).state.final for id in ids)


def test_what_a_killed_service_drove_another_takes_over_and_completes(site):
    first, second = site.start_two()
    ids = site.create_for_both(4, first, second, trials=6, seconds=0.5, parallel=2)
    await_(lambda: len(site.sent()) >= 4, "jobs run")
    dead = set(site.drivers(first.pid))
    first.kill()
    # As where it ran on another machine: nothing here can tell that it died.
    for path in (site.home.root / "holders").glob(f"*:{first.pid}:*"):
        path.unlink(missing_ok=True)
    waited_s = await_(lambda: dead <= set(site.drivers(second.pid)) | ended(site), "it takes them over")
    assert waited_s < 15.0
    await_(lambda: over(site, ids), "all are complete")
    site.check_truth(*ids)


def ended(site: Site) -> set[str]:
    return {campaign.id for campaign in site.store.campaigns(limit=99) if campaign.state.final}


@pytest.mark.long
def test_a_service_that_sleeps_while_it_sends_a_job_calls_it_back_when_it_wakes(site):
    id = site.create(trials=6, seconds=3.0, parallel=2)
    sleeper = site.start()
    await_(lambda: len(site.trials(id)) >= 3, "it is at work")
    (site.home.root / "stop-here").touch()
    await_(lambda: not (site.home.root / "stop-here").exists(), "it is about to send a job")
    other = site.start()
    await_(
        lambda: any(
            str(trial.attempts[0].outcome and trial.attempts[0].outcome.verdict) == "lost" for trial in site.trials(id)
        ),
        "the other one gives that job up",
    )
    os.kill(sleeper.pid, signal.SIGCONT)
    await_(lambda: over(site, [id]), "all is complete")
    (again,) = [trial for trial in site.trials(id) if len(trial.attempts) == 2]
    lost = again.attempts[0]
    assert (lost.job_id, lost.outcome.reason) == (None, "its service vanished while sending it")
    await_(lambda: (sleeper.pid, lost.job_name) in site.sent(), "the job is sent all the same")
    site.check_truth(id, given_up=1)
    # What it woke up to was another's: all that came after is the other one's.
    after = site.sent()[[name for _, name in site.sent()].index(again.last.job_name) :]
    assert {pid for pid, name in after if name != lost.job_name} == {other.pid}


def test_a_service_that_sleeps_in_mid_campaign_does_nothing_more_of_it_when_it_wakes(site):
    (site.home.root / "hold").touch()  # so that it is in mid-campaign, however late it is stopped
    id = site.create(trials=8, seconds=0.4, parallel=2)
    sleeper = site.start()
    await_(lambda: [trial.state for trial in site.trials(id)] == [TrialState.RUNNING] * 2, "its jobs run")
    (site.home.root / "stop-there").touch()
    await_(lambda: not (site.home.root / "stop-there").exists(), "it sleeps")
    (site.home.root / "hold").unlink()
    other = site.start()
    await_(lambda: other.pid in {pid for pid, _ in site.sent()}, "the other one takes over")
    seen = [pid for pid, _ in site.sent()].index(other.pid)
    os.kill(sleeper.pid, signal.SIGCONT)
    await_(lambda: over(site, [id]), "all is complete")
    # A job that was under way just then may be given up, and is called back.
    lost = [each for trial in site.trials(id) for each in trial.attempts if each.job_id is None]
    site.check_truth(id, given_up=len({each.job_name for each in lost} & {name for _, name in site.sent()}))
    assert {pid for pid, name in site.sent()[seen:] if name not in {each.job_name for each in lost}} == {other.pid}
    assert sleeper.poll() is None


@pytest.mark.long
def test_a_database_that_is_silent_for_longer_than_a_lease_doubles_nothing(site, server):
    services = site.start_two()
    ids = [site.create(trials=8, seconds=0.5, parallel=2) for _ in range(2)]
    await_(lambda: all(any(trial.state.final for trial in site.trials(id)) for id in ids), "both are at work")
    server.signal(signal.SIGSTOP)
    try:
        time.sleep(1.75 * LEASE_S)
    finally:
        server.signal(signal.SIGCONT)
    await_(lambda: over(site, ids), "all are complete")
    site.check_truth(*ids)
    assert all(service.poll() is None for service in services)


def test_a_service_that_is_asked_to_stop_hands_over_at_once(site):
    first, second = site.start_two()
    ids = site.create_for_both(2, first, second, trials=6, seconds=0.4, parallel=2)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    assert not site.drivers(first.pid)
    await_(lambda: set(site.drivers(second.pid)) | ended(site) == set(ids), "the other one has both")
    await_(lambda: over(site, ids), "all are complete")
    site.check_truth(*ids)
