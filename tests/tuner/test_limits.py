"""Campaigns under the limits of their home: how they share, wait, pause, and that no two processes take one place."""

from __future__ import annotations

from functools import partial

import pytest

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.service.quotas import InvalidLimits


def limit(home, text):
    home.root.mkdir(parents=True, exist_ok=True)
    home.limits.write_text(text)


def spans(store, id):
    """From when to when each job ran."""
    return [(trial.last.started_at, trial.last.finished_at) for trial in store.trials(id)]


def held_s(times, until):
    return sum(min(end, until) - start for start, end in times if start < until)


def run_both(lab, one, other, *, step_s=1.0, ticks=1000):
    for _ in range(ticks):
        active = [id for id in (one, other) if not lab.campaign(id).state.final]
        if not active:
            return
        if not any([lab.service.tick(id) for id in active]):
            lab.now += step_s
    raise AssertionError("not over")


@pytest.mark.parametrize(("jobs", "slow_s"), [(1, 10.0), (3, 8.0)])
def test_two_campaigns_share_device_time_however_long_their_jobs_are(lab, make, jobs, slow_s):
    limit(lab.home, f"jobs: {jobs}")
    lab.machine.script = lambda name: make.Behaviour(run_s=slow_s if name.startswith("slow") else 2.0)
    free = {"space": {"zero_stage": [0, 1], "micro_batch_size": [1, 2, 4, 8], "tp": [1, 2, 4]}, "parallel": 3}
    slow = lab.create(name="slow", budget={"device_hours": 0.05}, **free)
    quick = lab.create(name="quick", budget={"device_hours": 0.05}, **free)
    run_both(lab, slow, quick)
    until = min(max(end for _, end in spans(lab.store, id)) for id in (slow, quick))
    times = [spans(lab.store, id) for id in (slow, quick)]
    shares = [held_s(each, until) for each in times]
    assert lab.machine.most_at_once == jobs
    assert min(shares) > 0.8 * max(shares), shares


def test_a_campaign_that_waits_says_for_what(lab, make):
    limit(lab.home, "jobs: 1")
    lab.machine.script = lambda name: make.Behaviour(run_s=5.0)
    first, second = lab.create(name="first"), lab.create(name="second")
    driver = Driver(lab.service)
    for _ in range(6):
        driver.step(first)
    assert lab.trials(first)[0].state is TrialState.RUNNING
    while driver.step(second):
        pass
    assert driver.troubles == {second: "1 of 1 jobs of the service are in flight"}
    assert lab.service.waits(second) == driver.troubles[second]
    assert lab.service.waits(first) == ""
    run_both(lab, first, second)
    assert lab.service.waits(second) == ""


def test_limits_are_read_again_when_they_change(lab, make):
    limit(lab.home, "jobs: 1")
    lab.machine.script = lambda name: make.Behaviour(run_s=50.0)
    id = lab.create(parallel=4)
    lab.run(id, until=lambda: lab.now > 1003)
    assert lab.machine.most_at_once == 1
    limit(lab.home, "jobs: 300")
    lab.run(id, until=lambda: lab.now > 1006)
    assert lab.machine.most_at_once == 4
    lab.home.limits.unlink()
    lab.run(id)
    assert lab.verdicts(id) == ["ok"] * 4


def test_limits_that_cannot_be_read_start_nothing_until_they_are_mended(lab):
    limit(lab.home, "jobs: 0")
    id = lab.create()
    driver = Driver(lab.service)
    with pytest.raises(InvalidLimits, match="must be at least 1, not 0"):
        lab.tick(id)
    assert driver.step(id) is False
    assert driver.troubles[id] == f"{lab.home.limits}: jobs: must be at least 1, not 0"
    assert lab.service.waits(id) == driver.troubles[id]
    assert not lab.machine.sent
    limit(lab.home, "jobs: [1")
    with pytest.raises(InvalidValue, match=r"limits\.yaml: line 1"):
        lab.tick(id)
    # Nobody needs them to end it.
    cancelled = lab.create()
    lab.service.cancel(cancelled)
    lab.run(cancelled)
    limit(lab.home, "jobs: 2")
    lab.run(id)
    assert lab.verdicts(id) == ["ok"] * 4


def test_spent_device_hours_pause_every_campaign_and_what_runs_is_measured(lab, make):
    limit(lab.home, "{device_hours: 0.03, window_days: 1}")  # 27 s of 4 devices
    lab.machine.script = lambda name: make.Behaviour(run_s=10.0)
    one, other = lab.create(name="one", budget={"trials": 9}), lab.create(name="other", budget={"trials": 9})
    while any(lab.campaign(id).state is CampaignState.RUNNING for id in (one, other)) or lab.now < 1060:
        if not any([lab.tick(one), lab.tick(other)]):
            lab.now += 1.0
    for id in (one, other):
        assert lab.campaign(id).state is CampaignState.PAUSED
        told = "of 0.03 device-hours of the service were spent within 1 days; resume it to go on"
        assert told in lab.campaign(id).reason
        assert all(trial.measurement is not None for trial in lab.trials(id) if trial.last.job_id)
    spent_s = sum(end - start for id in (one, other) for start, end in spans(lab.store, id) if end)
    # Both run one at a time, and the sum is taken every 10 s.
    assert 27 <= spent_s <= 27 + 2 * 20
    lab.service.resume(one)
    lab.run(one, until=lambda: lab.campaign(one).state is CampaignState.PAUSED)
    lab.now += 86400.0
    lab.service.resume(one)
    lab.tick(one)
    lab.tick(one)
    assert lab.campaign(one).state is CampaignState.RUNNING


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_act_under_limits_leaves_every_place_to_be_had(lab, make, after):
    limit(lab.home, "jobs: 1")
    died, act = True, 0
    while died:
        act += 1
        id = lab.create(budget={"trials": 1}, warm_start=False)
        counter = [0]
        lab.wrap = partial(make.Mortal, counter=counter, dies_at=act, after=after)
        lab.open()
        try:
            lab.run(id)
        except make.Killed:
            lab.kill()
            lab.wrap = lambda thing: thing
            lab.open()
            lab.run(id)
        died = counter[0] >= act
        assert lab.verdicts(id) == ["ok"], act
        assert set(lab.machine.sent.values()) == {1}, act
    assert act > 10
