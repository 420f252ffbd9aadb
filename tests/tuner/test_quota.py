"""Shares of jobs between campaigns, as a pure function: who may have how many, who is next, and what to tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.access.quotas import Demand, Limits, exhausted, refusal, shares, waits_for
from meshtune.tuner.service.quotas import parse_limits


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
    assert shares(Limits(**limits), demands) == given


DEMANDS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8), st.floats(0.0, 1e6)), max_size=6)


@given(rows=DEMANDS, jobs=st.none() | st.integers(1, 9), devices=st.none() | st.integers(1, 40))
def test_shares_keep_the_limits_waste_nothing_and_favour_nobody(rows, jobs, devices):
    demands = [
        demand(f"c{number}", devices=size, wanted=wanted, used=used) for number, (size, wanted, used) in enumerate(rows)
    ]
    given = shares(Limits(jobs=jobs, devices=devices), demands)
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


def test_a_job_waits_while_others_hold_the_room_even_within_its_share():
    limits = Limits(jobs=2)
    demands = [demand("a", in_flight=2), demand("b")]
    assert shares(limits, demands) == {"a": 1, "b": 1}
    assert refusal(limits, demands, "b") == "2 of 2 jobs of the service are in flight"
    assert refusal(limits, [demand("a", in_flight=1), demand("b")], "b") == ""


def test_whoever_has_its_share_waits_while_another_has_not():
    demands = [demand("a", in_flight=1), demand("b")]
    assert refusal(Limits(jobs=2), demands, "a") == "its fair share is 1 jobs just now; other campaigns are next"


def test_a_large_job_waits_for_devices():
    demands = [demand("a", in_flight=2, devices=4), demand("b", devices=12)]
    told = "8 of 16 devices of the service are in use, and its jobs take 12 each"
    assert refusal(Limits(devices=16), demands, "b") == told


def test_who_wants_nothing_waits_for_nothing_and_gets_nothing():
    demands = [demand("a", in_flight=1, wanted=1), demand("b", in_flight=1)]
    assert waits_for(Limits(jobs=2), demands, "a") == ""
    assert waits_for(Limits(jobs=2), demands, "b") == "2 of 2 jobs of the service are in flight"
    assert "share" in refusal(Limits(jobs=9), demands, "a")
    assert refusal(Limits(jobs=9), demands, "over") == "the campaign is over"


def test_hours_that_are_spent_and_jobs_that_are_too_large_are_told_with_numbers():
    limits = Limits(devices=8, device_hours=2.0, window_days=7.0)
    assert exhausted(limits, 8, 7199.0) == ""
    assert exhausted(limits, 8, 7200.0) == "2 of 2 device-hours of the service were spent within 7 days"
    assert exhausted(limits, 9, 0.0) == "each of its jobs takes 9 devices, and the service may use 8"
    assert exhausted(Limits(), 10**6, 10**9) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs: 0", "jobs: must be at least 1, not 0"),
        ("devices: -4", "devices: must be at least 1, not -4"),
        ("device_hours: 0", "device_hours: must be positive and finite, not 0.0"),
        ("device_hours: .inf", "device_hours: must be positive and finite, not inf"),
        ("{jobs: 1, window_days: -1}", "window_days: must be positive and finite, not -1.0"),
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
    assert parse_limits("{jobs: 2, device_hours: 100}") == Limits(jobs=2, device_hours=100.0, window_days=30.0)
