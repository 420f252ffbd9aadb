"""Several service processes on one PostgreSQL: one is killed or stopped, or the database is silent; nothing is doubled.

The jobs are simulated; the runner notes each that it really starts, and that is held against what the store says.
"""

from __future__ import annotations

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

from meshtune.runners.schedulers.file_queue import JOBS, OVER
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.postgres

PROGRAM = Path(__file__).parents[1] / "laboratories" / "leased_service.py"
LEASE_S = 2.0
SPEC: dict[str, Any] = {
    "name": "leased",
    "model": "gpt-1t",
    "cluster": {"preset": "frontier", "nodes": 384},
    "global_batch_size": 9600,
    "space": {"tp": [4, 8], "pp": [64, 128], "micro_batch_size": [1, 2], "zero_stage": [1], "recompute": ["full"]},
    "workload": "simulated",
    "runner": {"kind": "simulated", "seconds_per_trial": 0.5, "slots": 100},
    "search": "random",
    "confirm": 0,
    "warm_start": False,
    "trial": {"time_limit_s": 1e6},
    "budget": {"trials": 6},
    "parallel": 2,
}


class Site:
    """One database and one home, and two services that share them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.home, self.store = Home(folder), Store.open(url)
        command = [sys.executable, str(PROGRAM), url, str(folder), str(LEASE_S)]
        self.services = [subprocess.Popen(command, cwd=folder) for _ in range(2)]
        await_(lambda: self.store.leases.drivers().servers == 2, "two services serve")

    def create_for_both(self, count: int) -> list[str]:
        """So many campaigns; once each of the services has sent a job, until when none ends."""
        (self.home.root / "hold").touch()
        ids = [Service(self.store, self.home).create(SPEC).id for _ in range(count)]
        await_(lambda: {each.pid for each in self.services} <= {pid for pid, _ in self.sent()}, "both drive")
        (self.home.root / "hold").unlink()
        return ids

    def drivers(self, pid: int) -> set[str]:
        """The campaigns that this process drives."""
        return {id for id, driver in self.store.leases.drivers().by_campaign.items() if f":{pid}:" in driver}

    def ended(self) -> set[str]:
        return {campaign.id for campaign in self.store.campaigns(limit=99) if campaign.state.final}

    def sent(self) -> list[tuple[int, str]]:
        """What services noted of the jobs that they sent: the process and the job's name."""
        noted = self.home.root / "sent"
        lines = [line.split() for line in noted.read_text().splitlines()] if noted.exists() else []
        return [(int(pid), name) for pid, name in lines]

    def check_truth(self, ids: list[str]) -> None:
        """Each campaign completes, and what the runner started is what the store says."""
        await_(lambda: set(ids) <= self.ended(), "all are complete")
        assert max(Counter(name for _, name in self.sent()).values()) == 1
        told: set[str] = set()
        for id in ids:
            campaign, trials = self.store.campaign(id), self.store.trials(id)
            assert (campaign.state, campaign.reason) == (CampaignState.COMPLETED, "the budget of 6 trials is spent")
            assert [str(trial.verdict) for trial in trials] == ["ok"] * 6
            assert len({trial.plan for trial in trials}) == len(trials)
            told |= {each.job_name for trial in trials for each in trial.attempts if each.job_id is not None}
            ends = Counter(
                (e.data["number"], e.data["attempt"]) for e in self.store.events(id) if e.kind == "trial.done"
            )
            assert ends == {(trial.number, each.number): 1 for trial in trials for each in trial.attempts}
        root = self.home.runner("simulated")
        assert {path.name for folder in (JOBS, OVER) for path in (root / folder).glob("*")} == told


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresLab]:
    with PostgresLab() as lab:
        yield lab


@pytest.fixture
def site(server: PostgresLab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    name = f"leases{abs(hash(request.node.name))}"
    site = Site(server.create(name), tmp_path)
    yield site
    for service in site.services:
        service.kill()
        service.wait()
    site.store.close()
    server.drop(name)


def await_(holds: Callable[[], object], what: str, limit_s: float = 60.0) -> float:
    """Wait until it holds; the seconds that it took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < limit_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - begun


def test_what_a_killed_service_drove_another_takes_over_and_completes(site):
    (first, second), ids = site.services, site.create_for_both(4)
    await_(lambda: len(site.sent()) >= 4, "jobs run")
    dead = site.drivers(first.pid)
    first.kill()
    # As where it ran on another machine: nothing here can tell that it died.
    for path in (site.home.root / "holders").glob(f"*:{first.pid}:*"):
        path.unlink(missing_ok=True)
    assert await_(lambda: dead <= site.drivers(second.pid) | site.ended(), "it takes them over") < 15.0
    site.check_truth(ids)


@pytest.mark.long
def test_a_database_that_is_silent_for_longer_than_a_lease_doubles_nothing(site, server):
    ids = site.create_for_both(2)
    server.signal(signal.SIGSTOP)
    try:
        time.sleep(1.75 * LEASE_S)
    finally:
        server.signal(signal.SIGCONT)
    site.check_truth(ids)
    assert all(service.poll() is None for service in site.services)


@pytest.mark.long
def test_a_service_that_is_asked_to_stop_hands_over_at_once(site):
    (first, second), ids = site.services, site.create_for_both(2)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    assert not site.drivers(first.pid)
    await_(lambda: site.drivers(second.pid) | site.ended() == set(ids), "the other one has both")
    site.check_truth(ids)
