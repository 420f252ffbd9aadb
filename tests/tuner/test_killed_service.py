"""The real thing: `meshtune run` on the local runner, killed at random moments, and what is left at the end.

A plain test run kills 5 times, `make test-long` 20 times.

How often a job started is told by the job itself: a `sitecustomize` on the path of every interpreter notes each time
that a rank 0 opens its job file. There a job can be held, so that it is not over before a test has done what it will.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from jobs import processes_where, wait_for

from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.store import Store

COUNT_STARTS = """
import os, sys, time
HOLDS = os.path.join(os.path.dirname(__file__), "holds")
def note(event, arguments):
    if event == "open" and os.environ.get("RANK") == "0" and str(arguments[0]).endswith("job.json"):
        log = os.open("starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(log, b"%d\\n" % os.getpid())
        os.close(log)
        while os.path.exists(os.path.join(HOLDS, os.getcwd().rpartition("-t")[2])):
            time.sleep(0.02)
sys.addaudithook(note)
"""
LIMIT_S = 200.0
SPEC = {
    "name": "tiny",
    "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
    "cluster": {"preset": "local-cpu", "devices_per_node": 2},
    "global_batch_size": 8,
    "space": {"micro_batch_size": [1, 2, 4]},
    "baseline": {"tp": 1},
    "search": "random",
    "confirm": 0,
    "runner": {"kind": "local", "idle_s": 20},
}


class Site:
    """A home in an empty folder, and the commands that work in it."""

    def __init__(self, folder: Path, trials: int, steps: int) -> None:
        self.folder, self.home = folder, Home(folder / "home")
        self.holds = folder / "path" / "holds"
        self.holds.mkdir(parents=True)
        (folder / "path" / "sitecustomize.py").write_text(COUNT_STARTS)
        measuring = {"max_warmup_steps": 1, "min_steps": steps, "max_steps": steps}
        spec = {**SPEC, "budget": {"trials": trials}, "workload": {"kind": "torch", "measuring": measuring}}
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "meshtune.tuner.cli", *arguments, "--home", str(self.home.root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": f"{self.folder / 'path'}:{Path(__file__).parents[2]}"},
            start_new_session=True,
        )

    def hold(self, trial: int) -> None:
        """Let the first job of this trial take no step once it has started, until `let_go`."""
        (self.holds / f"{trial:04d}-a1").touch()

    def let_go(self, trial: int) -> None:
        (self.holds / f"{trial:04d}-a1").unlink()

    def begun(self, trial: int) -> bool:
        """Whether the first job of this trial has a folder."""
        return any(self.home.root.glob(f"campaigns/*/*-t{trial:04d}-a1"))

    def campaigns(self) -> list[Campaign]:
        if not (self.home.root / "meshtune.db").exists():
            return []
        with Store.open(self.home.database_url) as store:
            return store.campaigns(limit=9)

    def trials(self) -> list[Trial]:
        """Of the one campaign that there is."""
        with Store.open(self.home.database_url) as store:
            return [trial for campaign in store.campaigns(limit=9) for trial in store.trials(campaign.id)]

    def traces(self) -> int:
        """How much the jobs of the campaign have left on disk; grows with every deed."""
        return len(list(self.home.root.glob("campaigns/*/*/*")))

    def starts(self, job: str) -> list[str]:
        """The process ids of every rank 0 that the job ever had."""
        noted = self.home.job(self.campaigns()[0].id, job) / "starts"
        return noted.read_text().split() if noted.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[[int, int], Site]]:
    """A site for so many trials of so many steps; its server is told to stop at the end."""
    yield lambda trials, steps: Site(tmp_path, trials, steps)
    home = str(tmp_path / "home").encode()
    for pid in processes_where(lambda folder: home in (folder / "cmdline").read_bytes()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def finish(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=240)[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("budget", "times"), [pytest.param(3, 2, marks=pytest.mark.slow), pytest.param(15, 20, marks=pytest.mark.long)]
)
def test_a_campaign_survives_many_kills_and_starts_each_job_once(site, budget, times):
    site, end = site(budget, 60), budget - 1
    site.hold(end)  # the campaign outlives all kills, however late they come
    moments = random.Random(20)
    kills = 0
    while kills < times:
        known = site.campaigns()
        process = site.start("resume", "last") if known else site.start("run", "spec.yaml")
        # Every second one dies while it starts; the others live until their first deed, and a little longer.
        before = site.traces()
        if kills % 2:
            wait_for(lambda: site.traces() > before or site.begun(end) or process.poll() is not None, LIMIT_S)  # noqa: B023
        if kills == times - 1:  # however slow the first job is: each of its files was a deed so far
            wait_for(lambda: any(trial.state.final for trial in site.trials()), LIMIT_S)
        time.sleep(moments.uniform(0.0, 0.4))
        assert process.poll() is None, finish(process)
        kills += 1
        process.kill()
        finish(process)
    assert len(site.campaigns()) == 1
    done_before = sum(trial.state.final for trial in site.trials())
    site.let_go(end)
    last = site.start("resume", "last")
    told = finish(last)
    assert last.returncode == 0, told
    (campaign,) = site.campaigns()
    assert (campaign.state, campaign.reason) == (CampaignState.COMPLETED, f"the budget of {budget} trials is spent")
    trials = site.trials()
    assert [trial.number for trial in trials] == list(range(budget))
    assert len({trial.plan for trial in trials}) == budget
    ends = [(str(trial.state), str(trial.verdict), len(trial.attempts)) for trial in trials]
    assert ends == [("done", "ok", 1)] * budget
    assert {trial.last.job_name: len(site.starts(trial.last.job_name)) for trial in trials} == {
        trial.last.job_name: 1 for trial in trials
    }
    with Store.open(site.home.database_url) as store:
        ends = [event.data["number"] for event in store.events(campaign.id) if event.kind == "trial.done"]
    assert sorted(ends) == list(range(budget))
    assert len(list((site.home.runner("local") / "jobs").iterdir())) == budget
    assert done_before >= 1  # the kills fell into a campaign at work, not only into its first moments


@pytest.mark.slow
def test_ctrl_c_leaves_a_campaign_that_resume_completes(site):
    site = site(3, 10)
    site.hold(2)
    process = site.start("run", "spec.yaml")
    wait_for(lambda: bool(site.campaigns()) and any(t.state.final for t in site.trials()), LIMIT_S)
    process.send_signal(signal.SIGINT)
    told = finish(process)
    assert process.returncode == 130, told
    (campaign,) = site.campaigns()
    assert f"    meshtune resume {campaign.id} --home " in told
    assert "Traceback" not in told
    assert campaign.state is CampaignState.RUNNING
    site.let_go(2)
    again = site.start("resume", campaign.id)
    told = finish(again)
    assert again.returncode == 0, told
    assert re.search(r"Recommended: tp\d", told)
    assert [str(trial.verdict) for trial in site.trials()] == ["ok"] * 3
    assert all(len(site.starts(trial.last.job_name)) == 1 for trial in site.trials())
