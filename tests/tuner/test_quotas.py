"""Limits of a home and quotas of tokens: shares of jobs, refusals with numbers, campaigns that wait and go on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.access.quotas import (
    Demand,
    QuotaExceeded,
    ServiceLimits,
    exhausted,
    refusal,
    require_room,
    shares,
    waits_for,
)
from meshtune.tuner.access.tokens import Quotas, Scope, Token, Used, digest
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Budget
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.quotas import ADD_UP_EVERY_S, InvalidLimits, parse_limits
from meshtune.tuner.service.trouble import Trouble

pytestmark = pytest.mark.slow


def demand(id, *, wanted=4, in_flight=0, devices=1, used=0.0):
    return Demand(campaign_id=id, devices=devices, in_flight=in_flight, wanted=wanted, used_device_s=used)


@pytest.mark.parametrize(
    ("limits", "demands", "given"),
    [
        # Alike: halves.
        ({"jobs": 4}, [demand("a"), demand("b")], {"a": 2, "b": 2}),
        # What one does not want goes to the others.
        ({"jobs": 6}, [demand("a", wanted=1), demand("b", wanted=9), demand("c", wanted=9)], {"a": 1, "b": 3, "c": 2}),
        # Room for all: what they want.
        ({"jobs": 9}, [demand("a"), demand("b")], {"a": 4, "b": 4}),
        ({}, [demand("a"), demand("b")], {"a": 4, "b": 4}),
        # The odd job goes to who has used least lately.
        ({"jobs": 3}, [demand("a", used=7.0), demand("b", used=5.0)], {"a": 1, "b": 2}),
        # More campaigns than room: those who have used least.
        ({"jobs": 2}, [demand("a", used=9.0), demand("b", used=5.0), demand("c", used=7.0)], {"a": 0, "b": 1, "c": 1}),
        # Devices are what is shared: four small jobs are as much as one large one.
        ({"devices": 16}, [demand("a", devices=2), demand("b", devices=8)], {"a": 4, "b": 1}),
        # A job that does not fit leaves the room to others.
        ({"devices": 16}, [demand("a", devices=2, wanted=9), demand("b", devices=17)], {"a": 8, "b": 0}),
        # A large one whose turn it is keeps small ones from filling the room before it.
        ({"devices": 16}, [demand("a", devices=2, used=9.0), demand("b", devices=16, used=8.0)], {"a": 0, "b": 1}),
    ],
)
def test_shares_are_max_min_fair_by_devices(limits, demands, given):
    assert shares(ServiceLimits(**limits), demands) == given


DEMANDS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8), st.floats(0.0, 1e6)), max_size=6)


@given(rows=DEMANDS, jobs=st.none() | st.integers(1, 9), devices=st.none() | st.integers(1, 40))
def test_shares_keep_the_limits_waste_nothing_and_favour_nobody(rows, jobs, devices):
    demands = [
        demand(f"c{number}", devices=size, wanted=wanted, used=used) for number, (size, wanted, used) in enumerate(rows)
    ]
    given = shares(ServiceLimits(jobs=jobs, devices=devices), demands)
    held = {one.campaign_id: given[one.campaign_id] * one.devices for one in demands}
    free_jobs = (jobs or 10**6) - sum(given.values())
    free_devices = (devices or 10**6) - sum(held.values())
    assert min(free_jobs, free_devices) >= 0
    for one in demands:
        assert given[one.campaign_id] <= one.wanted
        if given[one.campaign_id] < one.wanted:
            assert free_jobs == 0 or one.devices > free_devices
            # Nobody holds more by a job than one who goes without, unless that one's next job would not have fitted.
            for other in demands:
                surplus = held[other.campaign_id] - other.devices - held[one.campaign_id]
                assert surplus <= 0 or one.devices > free_devices + other.devices or given[other.campaign_id] == 0


HELD = [demand("a", in_flight=2), demand("b")]
HALF = [demand("a", in_flight=1), demand("b")]
LARGE = [demand("a", in_flight=2, devices=4), demand("b", devices=12)]
CONTENT = [demand("a", in_flight=1, wanted=1), demand("b", in_flight=1)]


@pytest.mark.parametrize(
    ("limits", "demands", "asking", "told"),
    [
        # Others hold the room, even within one's share.
        ({"jobs": 2}, HELD, "b", "2 of 2 jobs of the service are in flight"),
        ({"jobs": 2}, HALF, "b", ""),
        ({"jobs": 2}, HALF, "a", "its fair share is 1 jobs just now; other campaigns are next"),
        ({"devices": 16}, LARGE, "b", "8 of 16 devices of the service are in use, and its jobs take 12 each"),
        ({"jobs": 9}, CONTENT, "a", "its fair share is 1 jobs just now; other campaigns are next"),
        ({"jobs": 9}, CONTENT, "over", "the campaign is over"),
    ],
)
def test_a_refused_job_is_told_what_it_waits_for(limits, demands, asking, told):
    assert refusal(ServiceLimits(**limits), demands, asking) == told


def test_a_campaign_that_wants_nothing_waits_for_nothing():
    assert shares(ServiceLimits(jobs=2), HELD) == {"a": 1, "b": 1}
    assert waits_for(ServiceLimits(jobs=2), CONTENT, "a") == ""
    assert waits_for(ServiceLimits(jobs=2), CONTENT, "b") == "2 of 2 jobs of the service are in flight"


def test_hours_that_are_spent_and_jobs_that_are_too_large_are_told_with_numbers():
    limits = ServiceLimits(devices=8, device_hours=2.0, window_days=7.0)
    assert exhausted(limits, 8, 7199.0) == ""
    assert exhausted(limits, 8, 7200.0) == "2 of 2 device-hours of the service were spent within 7 days"
    assert exhausted(limits, 9, 0.0) == "each of its jobs takes 9 devices, and the service may use 8"
    assert exhausted(ServiceLimits(), 10**6, 10**9) == ""


def test_shares_are_by_owner_and_then_by_campaign():
    """Of five campaigns of one owner and one of another's, each owner has half."""
    of_a = [
        Demand(campaign_id=f"a{n}", owner="a", devices=1, in_flight=0, wanted=9, used_device_s=0.0) for n in range(5)
    ]
    of_b = Demand(campaign_id="b", owner="b", devices=1, in_flight=0, wanted=9, used_device_s=0.0)
    given = shares(ServiceLimits(jobs=12), [*of_a, of_b])
    assert given == {"a0": 2, "a1": 1, "a2": 1, "a3": 1, "a4": 1, "b": 6}
    # Who used less lately is next, whichever of the owner's campaigns did it.
    used = [replace(of_a[0], used_device_s=7.0), *of_a[1:], replace(of_b, used_device_s=5.0)]
    assert shares(ServiceLimits(jobs=1), used)["b"] == 1
    assert shares(ServiceLimits(jobs=12), [*of_a, replace(of_b, wanted=1)])["b"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs: 0", "jobs: must be at least 1, not 0"),
        ("devices: -4", "devices: must be at least 1, not -4"),
        ("device_hours: 0", "device_hours: must be positive, not 0.0"),
        ("device_hours: .inf", "device_hours: must be finite, not inf"),
        ("{jobs: 1, window_days: -1}", "window_days: must be positive, not -1.0"),
        ("job: 3", "job: "),
        ("jobs: many", "jobs: "),
    ],
)
def test_wrong_limits_are_told_by_field(text, message):
    with pytest.raises(InvalidValue) as caught:
        parse_limits(text)
    assert message in str(caught.value)


def test_limits_that_set_nothing_are_none():
    assert parse_limits("") is None
    assert parse_limits("window_days: 7") is None
    assert parse_limits("{jobs: 2, device_hours: 100}") == ServiceLimits(jobs=2, device_hours=100.0, window_days=30.0)


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


def test_five_campaigns_of_one_owner_take_no_more_than_one_of_anothers(lab, make):
    limit(lab.home, "jobs: 2")
    lab.machine.script = lambda name: make.Behaviour(run_s=2.0)
    owners = {}
    for owner in ("a", "a", "a", "a", "a", "b"):
        space = {"zero_stage": [0, 1], "micro_batch_size": [1, 2, 4, 8], "tp": [1, 2, 4]}
        document = lab.document(space=space, parallel=3, budget={"trials": 12})
        owners[lab.service.create(document, owner).id] = owner
    while len(lab.machine.sent) < 17:
        if not any([lab.service.tick(id) for id in owners]):
            lab.now += 0.5
    starts = [owners[name.rpartition("-t")[0]] for name in lab.machine.sent][:17]
    assert starts.count("b") in (8, 9), starts


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
    assert driver.troubles == {second: Trouble("1 of 1 jobs of the service are in flight")}
    assert lab.service.waits(second) == driver.troubles[second]
    assert lab.service.waits(first) is None
    run_both(lab, first, second)
    assert lab.service.waits(second) is None


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
    assert driver.troubles[id] == Trouble(f"{lab.home.limits}: jobs: must be at least 1, not 0")
    assert lab.service.waits(id) == driver.troubles[id]
    assert not lab.machine.sent
    limit(lab.home, "jobs: [1")
    with pytest.raises(InvalidValue, match=r"limits\.yaml: line 2, column 1: is not YAML"):
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


DAY_S = 86400.0


def give(lab, **quotas) -> None:
    token = Token(
        name="ann",
        sha256=digest("mt_a"),
        scopes=frozenset({Scope.LAUNCH}),
        created_at=lab.now,
        expires_at=None,
        quotas=Quotas(**quotas),
    )
    lab.store.access.create(token)


def create(lab, **over) -> str:
    return lab.service.create(lab.document(**over), "ann").id


@pytest.mark.parametrize(
    ("quotas", "used", "budget", "told"),
    [
        ({"campaigns": 2}, {"campaigns": 2}, {"trials": 1}, "2 of 2 campaigns of the token ann are active"),
        ({"trials": 50}, {"trials": 45}, {"trials": 6}, "the budget is 6 trials, .* has 5 of 50 within 24 h left"),
        ({"trials": 5}, {"trials": 7}, {"wall_time_s": 9}, "the budget is 1 trials, .* has 0 of 5 within 24 h left"),
        ({"device_hours": 2}, {"device_hours": 1.5}, {"device_hours": 0.6}, "is 0.6 .* has 0.5 of 2 device-hours"),
        ({"device_hours": 2}, {"device_hours": 2.5}, {"trials": 9}, "^the token ann has 0 of 2 device-hours"),
    ],
)
def test_what_asks_for_more_than_is_left_is_refused_with_the_numbers(quotas, used, budget, told):
    with pytest.raises(QuotaExceeded, match=told):
        require_room(
            "ann",
            Quotas(**quotas),
            Used(**{"campaigns": 0, "trials": 0, "device_hours": 0.0, **used}),
            Budget(**budget),
        )


def test_a_campaign_waits_for_the_days_trials_says_so_and_goes_on_when_they_come_back(lab):
    give(lab, trials=3)
    id = create(lab, budget={"wall_time_s": 1e6}, parallel=2)
    driver = Driver(lab.service)
    for _ in range(100):
        if not driver.step(id):
            lab.now += 0.5
    assert len(lab.trials(id)) == 3
    assert lab.campaign(id).state is CampaignState.RUNNING
    assert "3 of 3 trials of the token ann were planned within 24 h" in driver.troubles[id].words
    lab.now += DAY_S
    for _ in range(20):
        if not driver.step(id):
            lab.now += 0.5
    assert 3 < len(lab.trials(id)) <= 6


def test_two_campaigns_of_one_token_have_the_days_trials_together(lab):
    give(lab, trials=4)
    ids = [create(lab, name=name, budget={"wall_time_s": 1e6}, parallel=3) for name in ("one", "two")]
    for _ in range(60):
        if not any([lab.service.tick(id) for id in ids]):
            lab.now += 0.5
    assert sum(len(lab.trials(id)) for id in ids) == 4
    other = lab.service.create(lab.document(name="free"), "bob").id
    lab.run(other)
    assert len(lab.trials(other)) == 4


def test_a_campaign_whose_device_hours_are_spent_is_paused_with_the_reason(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=100.0)
    give(lab, device_hours=0.2)
    id = create(lab, budget={"wall_time_s": 1e6})
    lab.run(id, until=lambda: lab.campaign(id).state is not CampaignState.RUNNING, step_s=ADD_UP_EVERY_S + 1)
    campaign = lab.campaign(id)
    assert campaign.state is CampaignState.PAUSED
    assert "of 0.2 device-hours of the token ann were spent within 30 days; resume it to go on" in campaign.reason
    with pytest.raises(QuotaExceeded, match=r"has 0 of 0\.2 device-hours"):
        create(lab, name="next")


def test_an_owner_without_a_token_has_no_quota(lab):
    id = lab.service.create(lab.document(), "left-long-ago").id
    lab.run(id)
    assert lab.verdicts(id) == ["ok"] * 4
