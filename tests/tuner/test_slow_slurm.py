"""A slow Slurm, shared by several campaigns of one service, is asked for all of them at once and holds up no others."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import wait_for
from slurm_lab import SlurmLab

from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(280)]

WRAPPER = """\
#!/bin/sh
echo "$(date +%s.%N) $*" >> {calls}
sleep $(cat {seconds})
exec {real} "$@"
"""
MANY = 6
VALUES = ("{micro_batch_size}", "{grad_accum_steps}")
LOCAL = """
import sys, time
from meshtune.runners.report import report
time.sleep(float(sys.argv[1]))
report([0.01 + 0.0001 * (number % 3) for number in range(12)])
"""
SPEC = {
    "model": "gpt-micro",
    "cluster": {"preset": "local-cpu", "nodes": 1, "devices_per_node": 1},
    "global_batch_size": 8,
    "search": "random",
    "confirm": 0,
}


class Site:
    """A service over a Slurm whose squeue sleeps, in a folder of its own."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.calls, self.seconds = folder / "calls", folder / "seconds"
        self.calls.touch()
        self.say("0")
        real = shutil.which("squeue")
        (folder / "bin").mkdir()
        wrapper = folder / "bin" / "squeue"
        wrapper.write_text(WRAPPER.format(calls=self.calls, seconds=self.seconds, real=real))
        wrapper.chmod(0o755)
        self.store, self.service = store, Service(store, Home(folder / "home"))
        self.driver, self.stop = Driver(self.service), threading.Event()
        self.thread = threading.Thread(target=drive_all, args=(self.driver, self.service, self.stop), daemon=True)

    def say(self, seconds: str) -> None:
        """How long squeue takes from now on."""
        self.seconds.write_text(seconds)

    def jobs_asked_for(self) -> list[set[str]]:
        """By call of squeue, of those that ask for jobs by number."""
        lines = self.calls.read_text().splitlines()
        words = [word for line in lines for word in line.split() if word.startswith("--jobs=")]
        return [set(word.removeprefix("--jobs=").split(",")) for word in words]

    def create(self, **over) -> str:
        return self.service.create({**SPEC, **over}).id

    def in_flight(self, id: str) -> list[str]:
        return [trial.last.job_id for trial in self.store.trials(id) if trial.last.job_id and not trial.state.final]


@pytest.fixture
def site(tmp_path: Path, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        site = Site(tmp_path, store)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
        site.thread.start()
        yield site
        site.say("0")
        site.stop.set()
        site.thread.join(60)
        slurm.cancel_all()


@pytest.mark.parametrize(("squeue_s", "job_s", "watched_s"), [(2, 0.1, 0.0), (20, 2.0, 60.0)])
def test_six_campaigns_on_a_slow_slurm_share_each_look_and_leave_a_local_one_alone(
    site, squeue_s, job_s, watched_s, record_property
):
    """job_s: of each of two local jobs. watched_s: how long calls are counted of a squeue that is quick again."""
    period_s = 5.0 if watched_s else 0.5
    idle = {"kind": "command", "command": ["sh", "-c", "sleep 250", *VALUES]}
    slow = [
        site.create(name=f"slow{n}", workload=idle, runner={"kind": "slurm", "partition": "main", "poll_s": period_s})
        for n in range(MANY)
    ]
    wait_for(lambda: all(len(site.in_flight(id)) == 1 for id in slow), 60)
    everything = {site.in_flight(id)[0] for id in slow}
    site.say(str(squeue_s))
    before = len(site.jobs_asked_for())
    wait_for(lambda: len(site.jobs_asked_for()) > before, 20)
    work = {"kind": "command", "command": [sys.executable, "-c", LOCAL, str(job_s), *VALUES]}
    begun, calls = time.monotonic(), len(site.jobs_asked_for())
    quick = site.create(name="quick", workload=work, runner="local", budget={"trials": 2})
    wait_for(lambda: site.store.campaign(quick).state is CampaignState.COMPLETED, 120)
    took_s, asked = time.monotonic() - begun, site.jobs_asked_for()
    assert set(map(str, (trial.verdict for trial in site.store.trials(quick)))) == {"ok"}
    record_property("local_campaign_s", took_s)
    record_property("squeue_calls_meanwhile", len(asked) - calls)
    assert len(asked) - calls <= took_s / squeue_s + 1
    assert all(ids == everything for ids in asked[before:])
    assert all(site.store.campaign(id).state is CampaignState.RUNNING for id in slow)
    if watched_s:
        wait_for(lambda: "slurm has not answered for 1" in str(site.driver.troubles.get(slow[0])), 60)
        site.say("0")
        calls = len(site.jobs_asked_for())
        wait_for(lambda: len(site.jobs_asked_for()) > calls + 1, 60)
        calls = len(site.jobs_asked_for())
        time.sleep(watched_s)
        record_property("squeue_calls_a_minute", (len(site.jobs_asked_for()) - calls) * 60 / watched_s)
