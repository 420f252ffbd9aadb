"""Clocks that differ, and clocks that are set anew under a campaign: it ends as if they did not, and says how far they
are apart. With libfaketime in real processes; CLOCK_MONOTONIC stays true in them, as it does when a clock is set."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import yaml
from jobs import processes_where
from service_lab import ServiceLab
from service_process import Postgres

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.service.clocks import Presence, Skews, by_our_clock, skew_s
from meshtune.tuner.store import Store

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("started_at", "finished_at", "by_ours", "skew"),
    [
        (110.0, 120.0, (110.0, 120.0), 0.0),
        (None, None, (None, None), None),
        (410.0, 420.0, (200.0, 200.0), 220.0),
        (110.0, 420.0, (110.0, 200.0), 220.0),
        (-190.0, -180.0, (100.0, 100.0), -290.0),
    ],
)
def test_times_of_a_runner_are_moved_between_sending_and_looking(started_at, finished_at, by_ours, skew):
    status = JobStatus(state=JobState.SUCCEEDED, started_at=started_at, finished_at=finished_at)
    moved = by_our_clock(status, 100.0, 200.0)
    assert (moved.started_at, moved.finished_at) == by_ours
    assert skew_s(status, 100.0, 200.0) == skew


def test_our_own_clock_that_went_back_says_nothing_of_the_runners():
    status = JobStatus(state=JobState.RUNNING, started_at=110.0)
    assert skew_s(status, 3700.0, 120.0) is None
    assert by_our_clock(status, 3700.0, 120.0).started_at == 120.0


def test_clocks_apart_are_told_once_until_they_agree(caplog):
    skews = Skews()
    with caplog.at_level("INFO"):
        for seconds in (0.1, -5.0, 300.0, 301.0, 1.0):
            skews.note("the runner local", seconds)
            assert bool(skews.troubles()) == (seconds >= 300.0)
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "the clock of the runner local is 300 s or more ahead of ours; set both by NTP"
    assert second == "the clock of the runner local agrees with ours again"
    assert skews.gauge.labels("the runner local")._value.get() == 1.0


def test_only_the_presence_of_a_process_counts():
    now = [500.0]
    presence = Presence(4.0, lambda: now[0])
    for passed, look, confirmed in (
        (3.0, (3.0, 3.0), True),
        (4.0, (7.0, 7.0), False),  # a renewal that took long
        (0.1, (3.0, 0.0), False),  # it may be one that does not come
        (60.0, (3.0, 0.0), True),
        (1.0, (4.0, 1.0), False),
        (2.0, (6.0, 3.0), True),
        (4.0, (10.0, 7.0), True),
    ):
        now[0] += passed
        assert presence.look() == pytest.approx(look)
        if confirmed:
            presence.confirm()


@pytest.mark.parametrize("jump_s", [300.0, -300.0, HOUR_S, -HOUR_S])
@pytest.mark.parametrize("when", ["from the start", "while jobs wait", "while jobs run"])
def test_a_campaign_ends_alike_whatever_the_services_clock_says(lab, make, jump_s, when):
    lab.machine.script = lambda name: make.Behaviour(queue_s=5.0, run_s=20.0)
    shift = [jump_s if when == "from the start" else 0.0]
    service, clock = lab.service, lambda: lab.now + shift[0]
    service._clock = service.sessions._clock = clock
    object.__setattr__(service._ticker, "clock", clock)
    budget = {"trials": 4, "wall_time_s": 600}
    id = lab.create(parallel=2, trial={"time_limit_s": 60, "queue_limit_s": 60}, budget=budget)
    first = "submitted" if when == "while jobs wait" else "running"
    lab.run(id, until=lambda: any(trial.state == first for trial in lab.trials(id)))
    shift[0] = jump_s
    lab.run(id)
    trials = lab.trials(id)
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 4
    assert [len(trial.attempts) for trial in trials] == [1] * 4
    assert [trial.last.running_s for trial in trials] == [20.0] * 4
    assert lab.campaign(id).state is CampaignState.COMPLETED
    assert 50.0 <= lab.campaign(id).elapsed_s < 70.0
    assert "the runner fake" in service.metrics.skews.troubles()  # whose clock did not jump


def test_how_long_a_job_has_run_outlives_a_restart(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=10_000.0)
    id = lab.create(trial={"time_limit_s": 100}, budget={"trials": 1})
    real = make.FakeRunner.poll

    def poll(runner, ids):  # a runner that tells no times
        return {job: JobStatus(state=status.state) for job, status in real(runner, ids).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make.FakeRunner, "poll", poll)
        lab.run(id, until=lambda: lab.now >= 1090.0)
        lab.kill()
        lab.open()
        lab.run(id, until=lambda: bool(lab.machine.cancels))
    # It was cancelled at its limit and some patience, less what the killed service had not saved.
    assert 160.0 < lab.now - 1000.0 < 175.0


STEPS = """
import time
for step in range(1, 9):
    time.sleep(0.05)
    print(f"iter {step} | 50.00 ms/it", flush=True)
"""
SPEC = {
    "name": "clocks",
    "model": "gpt-micro",
    "cluster": {"preset": "local-cpu", "devices_per_node": 1},
    "global_batch_size": 16,
    "space": {"micro_batch_size": [1, 2, 4, 8], "zero_stage": [0]},
    "search": "grid",
    "budget": {"trials": 4, "wall_time_s": 600},
    "confirm": 0,
    "parallel": 4,
    "trial": {"time_limit_s": 60, "queue_limit_s": 60},
    "runner": {"kind": "local", "idle_s": 1.0},
    "workload": {
        "kind": "command",
        "command": "exec {python} steps.py {micro_batch_size} {grad_accum_steps}",
        "files": {"steps.py": STEPS.replace("{", "{{").replace("}", "}}")},
        "start": "job",
        "steps": 8,
        "warmup_steps": 2,
        "log": {"step": r"iter (\d+)", "step_time_ms": r"([\d.]+) ms/it"},
    },
}
LIBRARIES = ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/local/lib/faketime")


# libfaketime 0.9.10 takes the end of Python's sleep, which is monotonic, for a time by the clock that it shifts.
SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select((), (), (), seconds) and None\n"


@dataclass
class WrongClock:
    """A clock that processes with this environment see."""

    file: Path
    library: Path

    def set(self, ahead_s: float) -> None:
        draft = self.file.with_suffix(".draft")
        draft.write_text(f"{ahead_s:+.0f}")
        draft.rename(self.file)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_PRELOAD": str(self.library),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": str(self.file.parent / "site"),
        }


@pytest.fixture
def wrong_clock() -> Iterator[WrongClock]:
    found = [path for folder in LIBRARIES if (path := Path(folder) / "libfaketimeMT.so.1").is_file()]
    if not found:
        if os.environ.get("CI"):
            pytest.fail("libfaketime is not installed")
        pytest.skip("libfaketime is not installed: apt-get install faketime")
    with tempfile.TemporaryDirectory(prefix="mt-clock-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the database's user reads it too
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SLEEP)
        clock = WrongClock(folder / "clock", found[0])
        clock.set(0.0)
        yield clock


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Callable[..., list[Trial]]]:
    """Run the campaign with these environments of the service and of the local server, and call `during` when its first
    trial has ended; its trials."""
    home = Home(tmp_path / "home")
    started: list[subprocess.Popen[bytes]] = []

    def run(service: dict[str, str], server: dict[str, str] | None, during: Callable[[], None]) -> list[Trial]:
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
        if server is not None:
            spool = home.runner("local")
            (spool / "jobs").mkdir(parents=True)
            module = ("-m", "meshtune.runners.schedulers.local.server", str(spool), "--idle-s", "20")
            started.append(subprocess.Popen([sys.executable, *module], env=server))
            wait_for(lambda: (spool / "server.lock").exists())
        command = [sys.executable, "-m", "meshtune.tuner.cli", "run", "spec.yaml", "--home", str(home.root)]
        with (tmp_path / "log").open("wb") as log:
            driver = subprocess.Popen(command, cwd=tmp_path, env=service, stdout=log, stderr=log)
        started.append(driver)
        wait_for(lambda: b"trial 0: " in (tmp_path / "log").read_bytes() or driver.poll() is not None)
        during()
        assert driver.wait(60) == 0, (tmp_path / "log").read_text()
        with Store.open(service.get("MESHTUNE_DB", home.database_url)) as store:
            (found,) = store.campaigns(limit=2)
            assert found.state is CampaignState.COMPLETED, (tmp_path / "log").read_text()
            assert found.elapsed_s < 120
            return store.trials(found.id)

    yield run
    for process in started:
        process.terminate()
        process.wait(20)
    wanted = str(home.root).encode()
    wait_for(lambda: not processes_where(lambda process: wanted in (process / "cmdline").read_bytes()))


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whose", "jump_s"),
    [
        pytest.param("service", 300.0, marks=pytest.mark.long),
        ("service", -HOUR_S),
        pytest.param("runner", HOUR_S, marks=pytest.mark.long),
        pytest.param("service", HOUR_S, marks=pytest.mark.long),
        pytest.param("runner", -HOUR_S, marks=pytest.mark.long),
        pytest.param("runner", 300.0, marks=pytest.mark.long),
    ],
)
def test_a_real_campaign_ends_well_whatever_one_clock_says(campaign, wrong_clock, whose, jump_s):
    if jump_s == 300.0:
        wrong_clock.set(jump_s)  # from the start
    right, wrong = dict(os.environ), wrong_clock.environment
    trials = campaign(
        wrong if whose == "service" else right,
        wrong if whose == "runner" else None,
        lambda: wrong_clock.set(jump_s),
    )
    assert [(trial.verdict, len(trial.attempts)) for trial in trials] == [(Verdict.OK, 1)] * 4
    assert all(0.3 < trial.last.running_s < 30 for trial in trials), [trial.last.running_s for trial in trials]
    for trial in trials:
        assert trial.last.submitted_at <= trial.last.started_at <= trial.last.finished_at or jump_s < 0


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_real_campaign_ends_well_whatever_the_databases_clock_says(campaign, wrong_clock, jump_s):
    """Its clock decides whose the leases are."""
    server = Postgres(wrong_clock.environment)
    try:
        with psycopg.connect(server.url) as connection:
            wrong_clock.set(jump_s)
            ((ahead_s,),) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float").fetchall()
            assert abs(ahead_s - time.time() - jump_s) < 60
            wrong_clock.set(0.0)
        trials = campaign({**os.environ, "MESHTUNE_DB": server.url}, None, lambda: wrong_clock.set(jump_s))
    finally:
        server.stop()
    assert [(trial.verdict, len(trial.attempts)) for trial in trials] == [(Verdict.OK, 1)] * 4
    assert all(0.3 < trial.last.running_s < 30 for trial in trials)


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [HOUR_S, pytest.param(-HOUR_S, marks=pytest.mark.long)])
def test_a_claim_outlives_a_clock_that_is_set(tmp_path, wrong_clock, monkeypatch, jump_s):
    for name, value in wrong_clock.environment.items():
        monkeypatch.setenv(name, value)
    spec = {**SPEC, "runner": "external", "parallel": 1, "trial": {"time_limit_s": 60}, "budget": {"trials": 2}}
    with ServiceLab(tmp_path) as lab:
        path = f"/v1/campaigns/{lab.call('POST', '/v1/campaigns', spec)['id']}"
        for number, ahead_s in enumerate((jump_s, 0.0)):
            (one,) = lab.call("POST", f"{path}:suggest", {"wait_s": 30})["suggestions"]
            lab.wait(lambda at=f"{path}/trials/{number}": lab.call("GET", at)["state"] == "running", 30)
            wrong_clock.set(ahead_s)
            time.sleep(1)
            assert lab.call("GET", f"{path}/trials/{number}")["state"] == "running"
            told = {"step_times_s": [0.4, 0.41], "claim": one["claim"]}
            lab.call("POST", f"{path}/trials/{number}:complete", told)
            lab.wait(lambda at=f"{path}/trials/{number}": lab.call("GET", at)["state"] == "done", 30)
    with Store.open(Home(lab.home).database_url) as store:
        trials = store.trials(path.rpartition("/")[2])
    assert [(trial.verdict, len(trial.attempts)) for trial in trials] == [(Verdict.OK, 1)] * 2
    assert all(0.5 < trial.last.running_s < 30 for trial in trials)
