"""Searches think for a share of the time, each in its turn, and jobs are looked at meanwhile."""

from __future__ import annotations

import threading
import time

from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service import cpu_budget as module
from meshtune.tuner.service.cpu_budget import MOST_S, SHARE, Thinking
from meshtune.tuner.service.loop import Driver, Rounds

LIMIT_S = 60.0


def never():
    return False


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_asks_begin_until_the_purse_is_spent_and_again_when_it_is_refilled():
    clock = Clock()
    thinking = Thinking(clock)
    thinking.took(0.8 * MOST_S)
    assert thinking.may("a")
    thinking.took(1.2 * MOST_S)  # overdrawn by as much as it holds
    assert not thinking.may("a")
    clock.now += 0.9 * MOST_S / SHARE
    assert not thinking.may("a")
    clock.now += 0.2 * MOST_S / SHARE
    assert thinking.may("a")


def test_a_long_rest_fills_the_purse_no_more_than_once():
    clock = Clock()
    thinking = Thinking(clock)
    clock.now += 1000.0
    assert thinking.may("a")
    thinking.took(1.01 * MOST_S)
    assert not thinking.may("a")


def test_who_could_not_think_comes_first_until_another_one_could_not():
    thinking = Thinking(Clock())
    ids = ["a", "b", "c", "d"]
    assert thinking.in_turn(ids) == ids
    thinking.took(2 * MOST_S)
    assert not thinking.may("c")
    assert not thinking.may("d")
    for _ in range(2):  # a round in which nobody asks changes nothing
        assert thinking.in_turn(ids) == ["c", "d", "a", "b"]
    assert not thinking.may("d")
    assert thinking.in_turn(ids) == ["d", "a", "b", "c"]
    assert thinking.in_turn(["a", "b"]) == ["a", "b"]  # d is gone
    assert thinking.in_turn([]) == []


def test_a_tick_that_must_not_think_does_all_else_and_the_next_one_asks(lab):
    id = lab.create(parallel=2, budget={"trials": 4})
    while [trial.state for trial in lab.trials(id)] != [TrialState.RUNNING] * 2:
        lab.tick(id, 0.1)
    asked = list(lab.search.asked)
    while lab.verdicts(id).count("ok") < 2:
        lab.service.tick(id, never)
        lab.now += 0.5
    assert not lab.service.tick(id, never)
    assert lab.search.asked == asked
    assert lab.service.tick(id)
    assert lab.search.asked == [*asked, 2]


def test_searches_that_use_up_the_purse_think_in_turn(lab, monkeypatch):
    monkeypatch.setattr(module, "MOST_S", 1e-6)
    clock, thinkers = Clock(), []

    def think(space, seen, n):
        thinkers.append(len(space))
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        # One plan alone, so that the campaign asks again at once.
        return [plan for plan in space if plan not in {one.plan for one in seen}][:1]

    lab.search.say = think
    for micro_batch_sizes in ([1], [1, 2], [1, 2, 4]):  # spaces that can be told apart
        lab.create(parallel=10, budget={"trials": 10}, space={"micro_batch_size": micro_batch_sizes})
    rounds = Rounds(Driver(lab.service), lab.service)
    rounds._thinking = Thinking(clock)
    stop, end = threading.Event(), time.monotonic() + LIMIT_S
    with lab.service.works.holder.beating(serves=True):
        while len(thinkers) < 9 and time.monotonic() < end:
            before = len(thinkers)
            rounds.go(stop)
            assert len(thinkers) <= before + 1
            if len(thinkers) > before:
                clock.now += 10.0
            time.sleep(0.01)
    assert len(set(thinkers)) == 3
    assert min(thinkers.count(one) for one in thinkers) >= 2
