"""A whole campaign on a simulated cluster: in seconds, through the real service, store and runner."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.commands.campaign import print_best
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.service.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

ROOT = Path(__file__).parents[2]
SPEC = {
    "name": "big",
    "model": "gpt-1t",
    "cluster": {"preset": "frontier", "nodes": 384},
    "global_batch_size": 9600,
    "space": {"tp": [2, 4, 8], "pp": [8, 64, 128], "micro_batch_size": [1, 2, 4], "recompute": ["none", "full"]},
    "workload": "simulated",
    "runner": {"kind": "simulated", "seed": 7, "noise": 0.02},
    "baseline": {"tp": 8, "pp": 64, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "search": "random",
    "budget": {"trials": 12},
    "confirm": 0,
    "trial": {"time_limit_s": 1e6},
    "parallel": 2,
}


@pytest.fixture
def service(tmp_path) -> Iterator[Service]:
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path / "home"))
        yield service
        service.close()


def campaign(service: Service, **over) -> tuple[Campaign, list[Trial]]:
    """The spec with other sections, run to its end."""
    id = service.create({**SPEC, **over}).id
    drive_one(Driver(service), service, id, lambda: None)
    return service.store.campaign(id), service.store.trials(id)


def simulated(**options) -> dict[str, object]:
    return {"kind": "simulated", "seed": 7, **options}


def test_3072_devices_are_tuned_in_seconds(service):
    start = time.monotonic()
    ended, trials = campaign(service)
    assert time.monotonic() - start < 100
    assert (ended.state, len(trials)) == (CampaignState.COMPLETED, 12)
    assert {trial.verdict for trial in trials} == {Verdict.OK, Verdict.OOM}
    for trial in trials:
        assert trial.outcome.reason.startswith("simulated: ")
        assert trial.measurement is None or trial.measurement.devices == 3072
    assert rank(ended, trials)[0].gain.value >= 0


def test_lost_jobs_are_tried_again_and_then_measured(service):
    # Every job draws its own fault: of 12 trials none loses a job once in 6e4 campaigns, and one all 40 once in 6e7.
    _, trials = campaign(service, runner=simulated(fault_rate=0.6), trial={"time_limit_s": 1e6, "attempts": 40})
    lost = [attempt for trial in trials for attempt in trial.attempts[:-1]]
    assert lost
    assert all(attempt.outcome.verdict is Verdict.LOST for attempt in lost)
    assert all("node frontier-0" in attempt.outcome.reason for attempt in lost)
    assert {trial.verdict for trial in trials} == {Verdict.OK, Verdict.OOM}


def test_two_campaigns_of_a_seed_see_one_cluster_and_another_seed_is_another(service):
    space = {"tp": [8], "pp": [64], "micro_batch_size": [1], "zero_stage": [1], "recompute": ["full"]}
    steps = []
    for seed in (7, 7, 8):
        runner = simulated(seed=seed, noise=0.0)
        _, (trial,) = campaign(service, space=space, baseline=None, runner=runner, search="grid")
        steps.append(trial.measurement.step_time_s)
    assert steps[0] == steps[1] != steps[2]


@pytest.mark.parametrize(
    ("runner", "workload"), [("local", {"kind": "simulated"}), ("simulated", {"kind": "torch", "dtype": "float16"})]
)
def test_simulated_and_real_do_not_go_together(runner, workload, home):
    with pytest.raises(InvalidSpec) as caught:
        read_spec({**SPEC, "runner": runner, "workload": workload}, home)
    told = [problem.message for problem in caught.value.problems if problem.path == "runner.kind"]
    assert told == [
        f"the runner {runner} cannot run the workload {workload['kind']}: `simulated` goes with `simulated` only"
    ]


@pytest.mark.parametrize("name", ["frontier-1t", "mula-220b"])
def test_an_example_recommends_a_setting(name, service, monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr("meshtune.tuner.cli.commands.campaign.console", Console(file=printed, width=200))
    text = (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
    ended, trials = campaign(service, **{"confirm": 3, **parse_yaml(text)})
    assert (ended.state, len(trials)) == (CampaignState.COMPLETED, 25 + 3)
    assert print_best(ended, service, 3)
    assert printed.getvalue().startswith("simulated: nothing below was measured on any device\n")
    assert "Use tp" in printed.getvalue()


class Site:
    """A home in an empty folder, and `meshtune` processes that work in it until they are killed."""

    def __init__(self, folder: Path, **over) -> None:
        self.folder, self.home = folder, Home(folder / "home")
        (folder / "spec.yaml").write_text(yaml.safe_dump({**SPEC, **over}))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "meshtune.tuner.cli", *arguments, "--home", str(self.home.root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )

    def finished(self) -> tuple[Campaign | None, list[Trial]]:
        if not (self.home.root / "meshtune.db").exists():
            return None, []
        with Store.open(self.home.database_url) as store:
            (campaign,) = store.campaigns(limit=9) or (None,)
            return campaign, [] if campaign is None else store.trials(campaign.id)


@pytest.mark.slow
def test_a_campaign_that_is_killed_again_and_again_loses_nothing_and_doubles_nothing(tmp_path):
    # Every job draws its own fault: with 9 attempts 20 trials end LOST once in 5e7 campaigns, with 3 once in 50.
    trial = {**SPEC["trial"], "attempts": 9}
    runner = simulated(seconds_per_trial=0.3, slots=2, fault_rate=0.1)
    site = Site(tmp_path, runner=runner, budget={"trials": 20}, trial=trial)
    moments = random.Random(5)
    started, kills = False, 0
    for _ in range(5):
        process = site.start("resume", "last") if started else site.start("run", str(tmp_path / "spec.yaml"))
        deadline, before = time.monotonic() + 40, len(sent(site))
        while process.poll() is None and len(sent(site)) < before + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        over = process.poll() is not None
        process.kill()
        process.communicate(timeout=30)
        if over:
            break
        started, kills = site.finished()[0] is not None, kills + 1
    process = site.start("resume", "last")
    told = process.communicate(timeout=200)[0]
    ended, trials = site.finished()
    assert ended.state is CampaignState.COMPLETED, told
    assert kills >= 3
    assert [trial.number for trial in trials] == list(range(20))
    assert len({trial.plan for trial in trials}) == 20
    attempts = [attempt.job_name for trial in trials for attempt in trial.attempts]
    assert sorted(attempts) == sorted(sent(site))
    assert {trial.verdict for trial in trials} <= {Verdict.OK, Verdict.OOM}


def sent(site: Site) -> list[str]:
    """The names of the jobs that the simulated cluster ever got."""
    root = site.home.runner("simulated")
    return [path.name for folder in ("jobs", "over") for path in (root / folder).glob("[!.]*")]
