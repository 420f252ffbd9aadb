"""A campaign on a real Slurm of four nodes, and everything that goes wrong on a cluster, one thing after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from slurm_lab import SlurmLab, wait_for

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.store import Store

pytestmark = pytest.mark.timeout(280)

# A rank goes on for as long as its job is held, so that something may happen to it. Each start is noted by its job.
SCRIPT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from meshtune.runners.report import report
rank = os.environ["RANK"]
with open("starts-" + rank, "a") as starts:
    starts.write(f"{os.getpid()}\\n")
while os.path.exists(os.path.join(sys.argv[2], os.getcwd().rpartition("-t")[2])):
    time.sleep(0.05)
step_s = 0.01 * (1 + int(sys.argv[3]) + int(sys.argv[4]))
report([step_s] * 5 + [step_s * (1 + 0.01 * (number % 3)) for number in range(10)])
"""
ROOT = Path(__file__).parents[2]


class Site:
    """A home in an empty folder, its one campaign, and the faults that happen to it."""

    def __init__(self, folder: Path, lab: SlurmLab) -> None:
        self.folder, self.lab, self.home = folder, lab, Home(folder / "home")
        (folder / "train.py").write_text(SCRIPT)
        self.holds = folder / "holds"
        self.holds.mkdir()
        self.told = (folder / "told.txt").open("ab")

    def hold(self, *jobs: str) -> None:
        """Let no rank of these jobs end by itself, until `let_go`. jobs: trial and attempt, as "0001-a1"."""
        for job in jobs:
            (self.holds / job).touch()

    def let_go(self, job: str) -> None:
        (self.holds / job).unlink()

    def write_spec(self) -> None:
        values = ["{micro_batch_size}", "{zero_stage}", "{grad_accum_steps}"]
        spec = {
            "name": "faults",
            "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
            "cluster": {"preset": "local-cpu", "nodes": 2, "devices_per_node": 1},
            "global_batch_size": 16,
            "space": {"micro_batch_size": [1, 2, 4]},
            "baseline": {"micro_batch_size": 1, "zero_stage": 0},
            "workload": {
                "kind": "command",
                "command": ["{python}", str(self.folder / "train.py"), str(ROOT), str(self.holds), *values],
            },
            "search": "grid",
            "confirm": 0,
            "trial": {"time_limit_s": 60},
            "runner": {"kind": "slurm", "poll_s": 0.2},
            "budget": {"trials": 7},
        }
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(spec))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A `meshtune` command in a process of its own; what it says is kept in `told.txt`."""
        return subprocess.Popen(
            [sys.executable, "-m", "meshtune.tuner.cli", *arguments, "--home", str(self.home.root)],
            stdout=self.told,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            start_new_session=True,
        )

    def ended(self) -> tuple[Campaign, list[Trial]]:
        with Store.open(self.home.database_url) as store:
            (campaign,) = store.campaigns(limit=9)
            return campaign, store.trials(campaign.id)

    def job(self, number: int, attempt: int = 1) -> Path:
        """The folder of an attempt's job."""
        found = list(self.home.root.glob(f"campaigns/*/*-t{number:04d}-a{attempt}"))
        return found[0] if found else self.folder / "nothing"

    def await_ranks(self, number: int, attempt: int = 1) -> list[int]:
        """The process ids of a job's two ranks, once both run."""

        def starts() -> list[str]:
            return [path.read_text() for path in sorted(self.job(number, attempt).glob("starts-*"))]

        wait_for(lambda: "".join(starts()).count("\n") == 2, f"trial {number} does not run")
        return [int(start) for start in starts()]

    def node_of(self, number: int, attempt: int = 1) -> str:
        """The node of the job's first rank."""
        name = self.job(number, attempt).name
        nodes = self.lab.run("squeue", "-h", f"--name={name}", "-o", "%N").strip()
        return self.lab.run("scontrol", "show", "hostnames", nodes).split()[0]

    def number_of(self, number: int) -> str:
        """Slurm's number of a job."""
        return self.lab.run("squeue", "-h", f"--name={self.job(number).name}", "-o", "%i").strip()

    def starts(self) -> dict[str, int]:
        """How often each job's processes were started, by job."""
        found: dict[str, int] = {}
        for path in self.home.root.glob("campaigns/*/*/starts-0"):
            found[path.parent.name] = len(path.read_text().split())
        return found


def end(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    os.killpg(process.pid, number)
    process.wait(20)


@pytest.fixture
def lab(slurm_cluster: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """Slurm notices within seconds that a node is dead. slurm_cluster: skips where there can be no Slurm."""
    with SlurmLab(nodes=4, cpus=2, frail=True) as lab:
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        yield lab


@pytest.fixture
def site(tmp_path: Path, lab: SlurmLab) -> Iterator[Site]:
    site = Site(tmp_path, lab)
    yield site
    site.told.close()


def test_a_campaign_survives_what_happens_on_a_cluster_and_loses_and_doubles_nothing(site, lab):
    site.write_spec()
    site.hold("0001-a1", "0002-a1", "0003-a1", "0004-a1", "0005-a1")
    service = site.start("run", "spec.yaml")
    try:
        site.await_ranks(0)
        os.kill(site.await_ranks(1)[1], signal.SIGKILL)
        site.await_ranks(2)
        lost = site.node_of(2)
        lab.kill_node(lost)
        site.await_ranks(2, attempt=2)
        site.await_ranks(3)
        lab.restart_controller()
        site.let_go("0003-a1")
        site.await_ranks(4)
        end(service)
        site.let_go("0004-a1")
        service = site.start("resume", "last")
        site.await_ranks(5)
        lab.run("scancel", site.number_of(5))
        assert service.wait(120) == 0
    finally:
        if service.poll() is None:
            end(service)
    campaign, trials = site.ended()
    assert campaign.state is CampaignState.COMPLETED, (site.folder / "told.txt").read_text()
    assert [trial.verdict for trial in trials] == [
        *(Verdict.OK, Verdict.CRASHED, Verdict.OK, Verdict.OK, Verdict.OK, Verdict.CANCELLED, Verdict.OK)
    ]
    assert trials[1].outcome.reason == "rank 1 was killed by SIGKILL"
    first, second = trials[2].attempts
    assert (first.outcome.verdict, first.outcome.failure) == (Verdict.LOST, Cause.NODE_FAULT)
    assert first.failed_nodes == (lost,)
    assert lost in first.nodes
    assert lost not in second.nodes
    attempts = {attempt.job_name: attempt.job_id for trial in trials for attempt in trial.attempts}
    assert {name: id for id, name, _ in lab.jobs()} == attempts
    assert len({id for id, _, _ in lab.jobs()}) == len(attempts)
    assert site.starts() == dict.fromkeys(attempts, 1)
