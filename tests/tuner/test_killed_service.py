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
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from driven import Driven
from jobs import processes_where, wait_for
from specs import tiny

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.store import Store

COUNT_STARTS = """
import os, sys, time
FOLDER = os.path.dirname(__file__)
def note(event, arguments):
    if event == "open" and os.environ.get("RANK") == "0" and str(arguments[0]).endswith("job.json"):
        job = os.path.basename(os.getcwd())
        log = os.open(os.path.join(FOLDER, "ledger"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(log, b"start %s 0 %d\\n" % (job.encode(), os.getpid()))
        os.close(log)
        while os.path.exists(os.path.join(FOLDER, "holds", job.rpartition("-t")[2])):
            time.sleep(0.02)
sys.addaudithook(note)
"""
LIMIT_S = 200.0


class Site(Driven):
    """The jobs are the trainer's."""

    def __init__(self, folder: Path, trials: int, steps: int) -> None:
        super().__init__(folder)
        (folder / "sitecustomize.py").write_text(COUNT_STARTS)
        self.environment = {"PYTHONPATH": str(folder)}
        spec = tiny(
            cluster={"preset": "local-cpu", "devices_per_node": 2},
            space={"micro_batch_size": [1, 2, 4]},
            baseline={"tp": 1},
            search="random",
            runner={"kind": "local", "idle_s": 20},
            budget={"trials": trials},
            workload={"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": steps, "max_steps": steps}},
        )
        self.write(spec)

    def begun(self, trial: int) -> bool:
        """Whether the first job of this trial has a folder."""
        return any(self.home.root.glob(f"campaigns/*/*-t{trial:04d}-a1"))

    def traces(self) -> int:
        """How much the jobs of the campaign have left on disk; grows with every deed."""
        return len(list(self.home.root.glob("campaigns/*/*/*")))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[[int, int], Site]]:
    """A site for so many trials of so many steps; its server is told to stop at the end."""
    yield lambda trials, steps: Site(tmp_path, trials, steps)
    home = str(tmp_path / "home").encode()
    for pid in processes_where(lambda folder: home in (folder / "cmdline").read_bytes()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("budget", "times"), [pytest.param(3, 2, marks=pytest.mark.slow), pytest.param(15, 20, marks=pytest.mark.long)]
)
def test_a_campaign_survives_many_kills_and_starts_each_job_once(site, budget, times):
    site, end = site(budget, 60), budget - 1
    held = f"{end:04d}-a1"
    site.hold(held)  # the campaign outlives all kills, however late they come
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
        assert process.poll() is None, site.said.read_text()
        kills += 1
        process.kill()
        process.wait()
    assert len(site.campaigns()) == 1
    done_before = sum(trial.state.final for trial in site.trials())
    site.let_go(held)
    site.finish(site.start("resume", "last"))
    (campaign,) = site.campaigns()
    assert (campaign.state, campaign.reason) == (CampaignState.COMPLETED, f"the budget of {budget} trials is spent")
    trials = site.trials()
    assert [trial.number for trial in trials] == list(range(budget))
    assert len({trial.plan for trial in trials}) == budget
    ends = [(str(trial.state), str(trial.verdict), len(trial.attempts)) for trial in trials]
    assert ends == [("done", "ok", 1)] * budget
    assert site.noted() == {trial.last.job_name: 1 for trial in trials}
    with Store.open(site.home.database_url) as store:
        ends = [event.data["number"] for event in store.events(campaign.id) if event.kind == "trial.done"]
    assert sorted(ends) == list(range(budget))
    assert len(list((site.home.runner("local") / "jobs").iterdir())) == budget
    assert done_before >= 1  # the kills fell into a campaign at work, not only into its first moments


@pytest.mark.slow
def test_ctrl_c_leaves_a_campaign_that_resume_completes(site):
    site = site(3, 10)
    site.hold("0002-a1")
    process = site.start("run", "spec.yaml")
    wait_for(lambda: bool(site.campaigns()) and any(t.state.final for t in site.trials()), LIMIT_S)
    process.send_signal(signal.SIGINT)
    told = site.finish(process, code=130)
    (campaign,) = site.campaigns()
    assert f"    meshtune resume {campaign.id} --home " in told
    assert "Traceback" not in told
    assert campaign.state is CampaignState.RUNNING
    site.let_go("0002-a1")
    told = site.finish(site.start("resume", campaign.id))
    assert re.search(r"Recommended: tp\d", told)
    assert [str(trial.verdict) for trial in site.trials()] == ["ok"] * 3
    assert site.noted() == {trial.last.job_name: 1 for trial in site.trials()}
