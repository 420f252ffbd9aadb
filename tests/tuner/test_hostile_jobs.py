"""One campaign's jobs leave what would keep a reader for ever: its trials get verdicts, the other campaign goes on."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from specs import tiny
from trust_neighbour import LEAVES as ENDLESS

from meshtune.runners.base import Cause, RunnerUnavailable
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.reading import GIVE_UP_S, JobReading
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

MEASURED = {"step_times_s": [0.5, 0.6], "tokens_per_step": 512, "devices": 1}
GOOD = json.dumps({"version": 1, "verdict": "ok", "measurement": MEASURED})
# What the trial of each micro-batch size leaves in its folder; that of 64 a result as well.
LEAVES = ENDLESS | {64: f"{ENDLESS[64]}; mv good result.json"}


def spec(name: str, command: str, sizes: list[int], **workload: object) -> dict[str, object]:
    return tiny(
        name=name,
        global_batch_size=128,
        space={"micro_batch_size": sizes},
        search="grid",
        trial={"time_limit_s": 30, "attempts": 1},
        workload={
            "kind": "command",
            "command": f": {{micro_batch_size}} {{grad_accum_steps}}; {command}",
            "files": {"good": escaped(GOOD)},
            **workload,
        },
        runner={"kind": "local", "idle_s": 1},
    )


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


class Site:
    """A home, and a service of it that drives in a thread until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.home.root.mkdir(exist_ok=True)
        self.store = Store.open(f"sqlite:///{self.home.root}/meshtune.db")
        self.service = Service(self.store, self.home)
        self.driver = Driver(self.service)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=drive_all, args=(self.driver, self.service, self._stop), daemon=True)

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.store.close()

    def finished(self, id: str, limit_s: float = 40.0) -> tuple[Campaign, list[Trial]]:
        deadline = time.monotonic() + limit_s
        while (campaign := self.store.campaign(id)).state.active:
            assert time.monotonic() < deadline, (campaign, self.driver.troubles)
            time.sleep(0.05)
        return campaign, self.store.trials(id)


# By micro-batch size: what a job says that it measured, and a word of the reason for which it crashed.
NUMBERS = {
    1: ({"step_times_s": [1e-307]}, "step_times_s: must be positive seconds, from 1e-09"),
    2: ({"step_times_s": [1e308] * 6}, "step_times_s: must be positive seconds, from 1e-09"),
    4: ({"peak_memory_bytes": [10**18]}, "peak_memory_bytes: must fit a device of"),
    8: ({"devices": 2**40}, "devices: must be at most 2147483647"),
    16: ({"peak_flops_per_device": 5e-324}, "peak_flops_per_device: must be from 1e-06"),
    32: ({"tokens_per_step": 666}, "refused: the database does not hold 666"),
    64: ({}, ""),
}


@pytest.mark.slow
def test_a_number_that_nobody_measured_ends_its_own_trial_and_nothing_else(tmp_path):
    files = {f"{size}.json": {**MEASURED, **given} for size, (given, _) in NUMBERS.items()}
    results = {name: escaped(GOOD.replace(json.dumps(MEASURED), json.dumps(told))) for name, told in files.items()}
    document = spec("numbers", "cp {micro_batch_size}.json result.json", list(NUMBERS), files=results)
    with Site(tmp_path) as site:
        with site.store._database.writing() as connection:  # what no check of ours knows
            connection.exec_driver_sql(
                "CREATE TRIGGER picky BEFORE INSERT ON measurements WHEN NEW.tokens_per_step = 666 "
                "BEGIN SELECT RAISE(ABORT, 'the database does not hold 666'); END"
            )
        campaign, trials = site.finished(site.service.create(document).id)
    assert campaign.state is CampaignState.COMPLETED, campaign.reason
    found = {trial.plan.micro_batch_size: (trial.verdict, trial.outcome.reason) for trial in trials}
    for size, (_, words) in NUMBERS.items():
        assert found[size][0] is (Verdict.CRASHED if words else Verdict.OK), found[size]
        assert words in found[size][1]


def test_what_cannot_be_read_at_all_is_a_crash_and_is_not_read_for_ever(lab, monkeypatch):
    def broken(*_):
        raise RecursionError("too deep")

    monkeypatch.setattr("meshtune.tuner.service.session.read_outcome", broken)
    id = lab.create(budget={"trials": 2})
    lab.run(id)
    assert lab.verdicts(id) == ["crashed"] * 2
    assert "makes no sense: RecursionError: too deep" in lab.trials(id)[0].outcome.reason


@pytest.mark.slow
def test_what_the_jobs_of_one_campaign_leave_stops_no_campaign_and_no_restart(tmp_path):
    cases = " ".join(f"{size}) {escaped(left)} ;;" for size, left in LEAVES.items())
    hostile = spec(
        "hostile", f"case {{micro_batch_size}} in {cases} esac", list(LEAVES), log={"step_time_s": "^(a+)+$"}, steps=6
    )
    normal = spec("normal", "cp good result.json", [1, 2, 4, 8])
    with Site(tmp_path) as site:
        first = site.service.create(hostile).id
        second = site.service.create(normal).id
        campaign, trials = site.finished(second)
        assert [trial.verdict for trial in trials] == [Verdict.OK] * 4
    with Site(tmp_path) as site:  # a service that starts beside what is left
        third = site.service.create(normal).id
        _, trials = site.finished(third)
        assert [trial.verdict for trial in trials] == [Verdict.OK] * 4
        campaign, trials = site.finished(first)
    assert campaign.state is CampaignState.COMPLETED, campaign.reason
    found = {trial.plan.micro_batch_size: trial.outcome for trial in trials}
    assert {size: (outcome.verdict, outcome.reason) for size, outcome in found.items() if size in (1, 2, 4, 32)} == {
        1: (Verdict.CRASHED, "the result file is malformed: result.json is a pipe, not a regular file"),
        2: (Verdict.CRASHED, "the result file is malformed: result.json is a link, not a regular file"),
        4: (
            Verdict.CRASHED,
            "the result file is malformed: result.json has 10737418240 bytes, and at most 8388608 are read",
        ),
        32: (Verdict.CRASHED, "the result file is malformed: result.json is a folder, not a regular file"),
    }
    assert (found[8].verdict, found[8].log_tail) == (Verdict.CRASHED, "(rank-0.log is a pipe, not a regular file)")
    assert (found[16].verdict, found[16].log_tail) == (Verdict.CRASHED, "(rank-0.log is a link, not a regular file)")
    assert found[64].verdict is Verdict.OK
    assert (found[128].verdict, found[128].cause) == (Verdict.LOST, Cause.STORAGE)
    assert "is gone" in found[128].reason


def test_a_reader_that_hangs_is_waited_for_and_given_up_as_lost():
    now, hangs, calls = [0.0], threading.Event(), []

    def read() -> Outcome:
        calls.append(1)
        hangs.wait(20)
        return Outcome(verdict=Verdict.OOM)

    reading = JobReading("job", lambda: now[0])
    assert reading.look(read, 0.01) is None
    now[0] = GIVE_UP_S - 1
    assert reading.look(read, 0.01) is None
    now[0] = GIVE_UP_S + 1
    lost = reading.look(read, 0.01)
    assert (lost.verdict, lost.cause, len(calls)) == (Verdict.LOST, Cause.STORAGE, 1)
    hangs.set()
    assert reading.look(read, 10.0).verdict is Verdict.OOM


def test_files_that_cannot_be_read_are_trouble_until_they_are_given_up():
    now = [0.0]

    def read() -> Outcome:
        raise RunnerUnavailable("Stale file handle")

    reading = JobReading("job", lambda: now[0])
    for now[0] in (0.0, GIVE_UP_S):
        with pytest.raises(RunnerUnavailable, match="Stale"):
            reading.look(read)
    now[0] = GIVE_UP_S + 1
    assert reading.look(read).reason.endswith("could not be read for 300 s: Stale file handle")


def test_a_folder_of_links_is_deleted_and_what_they_name_is_not(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path / "home"))
        id = service.create(spec("links", "true", [1])).id
        folder = service.home.campaign(id)
        folder.mkdir(parents=True)
        (folder / "out").symlink_to(kept)
        os.mkfifo(folder / "pipe")
        service.home.bin.mkdir(parents=True)
        (service.home.bin / "left").symlink_to(kept)
        service.cancel(id)
        store.move_campaign(id, CampaignState.CANCELLED, reason="", now=1.0)
        service.delete(id)
        assert list(service.home.bin.iterdir()) == []
    assert (kept / "file").exists()
