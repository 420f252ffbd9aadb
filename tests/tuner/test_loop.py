"""The driver waits out what passes, tells it, and lets no campaign's trouble stop another's."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from meshtune.runners.base import RunnerUnavailable
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.cli.following import driving, follow_logged
from meshtune.tuner.service.driving.loop import Driver, Periods, drive_one
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.trouble import Trouble
from meshtune.tuner.store import StoreError, StoreUnavailable

pytestmark = pytest.mark.slow

QUICK = Periods(tick_s=0.002, drivers_s=0.002, max_pause_s=0.01)


@pytest.fixture(autouse=True)
def quick(lab):
    """The service's clock runs a hundred times as fast as the wall's."""
    begun = time.monotonic()
    lab.machine.clock = lambda: 1000.0 + 100 * (time.monotonic() - begun)
    lab.service = Service(lab.store, lab.home, clock=lab.machine.clock, timer=lab.machine.clock)
    lab.services.append(lab.service)


def drive(lab, id, watch=lambda: None):
    driver = Driver(lab.service, QUICK)
    thread = threading.Thread(target=drive_one, args=(driver, lab.service, id, watch), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "drive_one did not come back"
    return driver


def test_a_silent_runner_is_waited_for_and_the_trouble_is_told(lab):
    id = lab.create()
    lab.machine.troubles.extend([RunnerUnavailable("no answer")] * 5)
    told = []
    driver = Driver(lab.service, QUICK)
    drive_one(driver, lab.service, id, lambda: told.append(str(driver.troubles.get(id))))
    assert "the runner: no answer" in told
    assert driver.troubles == {}
    assert lab.verdicts(id) == ["ok"] * 4


def test_a_database_that_is_locked_for_a_while_is_waited_for(lab, monkeypatch):
    id = lab.create()
    read, calls = lab.store.trials, [0]

    def trials(*args, **kwargs):
        calls[0] += 1
        if calls[0] % 3 == 0 and calls[0] < 20:
            raise StoreUnavailable("it is locked", transient=True)
        return read(*args, **kwargs)

    monkeypatch.setattr(lab.store, "trials", trials)
    drive(lab, id, lambda: lab.store.trials(id))
    assert lab.verdicts(id) == ["ok"] * 4


def test_a_database_that_stays_unusable_is_told(lab, monkeypatch):
    id = lab.create()

    def refuse(*args, **kwargs):
        raise StoreUnavailable("it is read-only", transient=False)

    monkeypatch.setattr(lab.store, "plan_trials", refuse)
    with pytest.raises(StoreUnavailable, match="read-only"):
        drive_one(Driver(lab.service, QUICK), lab.service, id, lambda: None)


def test_a_pause_ends_the_drive_when_the_running_trials_have_ended(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=20.0)
    id = lab.create(parallel=2)

    def watch():
        if len(lab.trials(id)) >= 2 and lab.campaign(id).state is CampaignState.RUNNING:
            lab.service.pause(id)

    drive(lab, id, watch)
    assert lab.campaign(id).state is CampaignState.PAUSED
    assert lab.service.sessions.get(id) is None


def test_a_trial_that_was_planned_but_not_sent_before_a_pause_does_not_hold_the_drive(lab):
    id = lab.create()
    lab.service.tick(id)
    lab.service.pause(id)
    assert lab.trials(id)[0].state is TrialState.PLANNED
    drive(lab, id)
    assert not lab.machine.sent
    lab.service.resume(id)
    drive(lab, id)
    assert lab.verdicts(id) == ["ok"] * 4


def drive_them_all(lab, until):
    driver, stop = Driver(lab.service, QUICK), threading.Event()
    thread = threading.Thread(target=drive_all, args=(driver, lab.service, stop), daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while time.monotonic() < end and not until(driver):
        time.sleep(0.01)
    alive = thread.is_alive()
    stop.set()
    thread.join(10)
    assert alive, "drive_all ended by itself"
    assert until(driver)
    return driver


@pytest.mark.parametrize("defect", [RuntimeError("a defect"), StoreError("refused"), ValueError("gone")])
def test_one_campaigns_defect_never_stops_the_others(lab, monkeypatch, defect):
    bad, good = lab.create(), lab.create()
    tick = lab.service.tick

    def ticking(id, *how):
        if id == bad:
            raise defect
        return tick(id, *how)

    monkeypatch.setattr(lab.service, "tick", ticking)
    driver = drive_them_all(lab, lambda driver: lab.campaign(good).state.final)
    assert str(defect) in driver.troubles[bad].words
    assert good not in driver.troubles


def test_a_runner_that_can_no_longer_be_made_is_a_trouble_and_no_traceback(lab, make, monkeypatch, caplog):
    id = lab.create()
    lab.service.pause(id)
    ended = InvalidValue([Problem("mode", "allocation: there is no allocation here")])

    def create(*how):
        raise ended

    monkeypatch.setattr("meshtune.tuner.service.session.create_runner", create)
    driver = drive_them_all(lab, lambda driver: id in driver.troubles)
    assert driver.troubles == {id: Trouble("mode: allocation: there is no allocation here")}
    assert caplog.records == []


@pytest.mark.parametrize("out", [False, True])
def test_a_cancelled_campaign_whose_runner_cannot_be_made_ends_once_no_job_of_it_may_run(lab, make, monkeypatch, out):
    lab.machine.script = lambda name: make.Behaviour(run_s=9999.0)
    id = lab.create(trial={"time_limit_s": 100}, parallel=2)
    lab.run(id, until=lambda: [trial.state for trial in lab.trials(id)] == ["running" if out else "planned"] * 2)
    lab.kill()
    lab.open()

    def create(*how):
        raise InvalidValue([Problem("mode", "allocation: there is no allocation here")])

    monkeypatch.setattr("meshtune.tuner.service.session.create_runner", create)
    lab.service.cancel(id)
    for _ in range(32 if out else 0):
        with pytest.raises(InvalidValue, match=rf"^{id}-t0000-a1, {id}-t0001-a1 may still run where .*no allocation"):
            lab.tick(id)
        assert not lab.service.sessions.holder.holds  # another process may take it
        lab.now += 5.0
    lab.tick(id)
    assert (lab.campaign(id).state, lab.campaign(id).reason) == (CampaignState.CANCELLED, "cancelled")
    assert lab.verdicts(id) == ["cancelled"] * 2


def test_a_log_says_once_why_a_job_waits_long(lab, make, capsys):
    lab.machine.script = lambda name: make.Behaviour(queue_s=50.0, why="JobHeldAdmin")
    campaign = lab.campaign(lab.create(budget={"trials": 1}))
    follow_logged(*driving(Driver(lab.service, QUICK), lab.service, campaign.id))
    told = capsys.readouterr().err
    assert told.count(f"{campaign.id}-t0000-a1: queued since 1970-01-01 00:16 UTC: JobHeldAdmin") == 1
    assert lab.verdicts(campaign.id) == ["ok"]


def test_a_list_of_campaigns_that_cannot_be_read_is_read_again(lab, monkeypatch):
    id = lab.create()
    read, told = lab.store.leases.drivers, []

    def drivers():
        told.append("")
        if len(told) == 1:
            raise StoreError("it is locked")
        return read()

    monkeypatch.setattr(lab.store.leases, "drivers", drivers)
    driver = drive_them_all(lab, lambda driver: lab.campaign(id).state.final)
    assert len(told) > 1
    assert driver.troubles == {}


def test_searches_that_would_use_up_the_processor_ask_in_turn_and_for_half_of_the_time(lab):
    asked: list[tuple[int, float]] = []

    def think(space, seen, n):
        asked.append((len(space), time.monotonic()))
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
        # One plan alone, so that the campaign asks again at once.
        return [plan for plan in space if plan not in {one.plan for one in seen}][:1]

    lab.search.say = think
    for micro_batch_sizes in ([1], [1, 2], [1, 2, 4]):  # spaces that can be told apart
        lab.create(parallel=10, budget={"trials": 10}, space={"micro_batch_size": micro_batch_sizes})
    drive_them_all(lab, lambda driver: len(asked) >= 15)
    sizes = [size for size, _ in asked[:15]]
    assert all(sizes.count(size) >= 2 for size in set(sizes))
    assert len(set(sizes)) == 3
    times = [at for _, at in asked]
    assert all(later - earlier >= 0.059 for earlier, later in pairwise(times))
