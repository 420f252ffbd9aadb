"""A scheduler that is slow, silent or stuck delays its own campaigns alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from jobs import wait_for

from meshtune.runners import registry
from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.registry import scheduler_name
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.service.answers import SchedulerSilence
from meshtune.tuner.service.driving import lanes, rounds
from meshtune.tuner.service.driving.loop import Driver, Periods
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.session import Session
from meshtune.tuner.store import NotFound, StoreUnavailable

pytestmark = pytest.mark.slow

QUICK = Periods(tick_s=0.002, drivers_s=0.002, max_pause_s=0.01)


@dataclass
class Gate:
    """Before each look of the runner `slow`. began: one waits at it."""

    open: threading.Event = field(default_factory=threading.Event)
    began: threading.Event = field(default_factory=threading.Event)
    failing: bool = False

    def poll(self, real: Callable, ids):
        self.began.set()
        self.open.wait(20)
        if self.failing:
            raise RunnerUnavailable("no controller")
        return real(ids)


GATES: list[Gate] = []


def create_slow_runner(root, cluster, options):
    runner, gate = registry.load(registry.RUNNERS["fake"])(root, cluster, options), GATES[-1]
    real = runner.poll
    runner.poll = lambda ids: gate.poll(real, ids)
    return runner


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setitem(registry.RUNNERS, "slow", f"{__name__}:create_slow_runner")
    GATES.append(Gate())
    yield GATES[-1]
    GATES.pop().open.set()


@dataclass
class Drive:
    """`drive_all` in a thread of its own."""

    service: Service
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.driver = Driver(self.service, QUICK)
        self.thread = threading.Thread(target=drive_all, args=(self.driver, self.service, self.stop), daemon=True)
        self.thread.start()

    def trouble(self, id: str) -> str:
        return str(self.driver.troubles.get(id, ""))

    def end(self) -> None:
        self.stop.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def drive(lab) -> Iterator[Callable[[], Drive]]:
    """The service's clock runs a hundred times as fast as the wall's."""
    begun = time.monotonic()
    lab.machine.clock = lambda: 1000.0 + 100 * (time.monotonic() - begun)
    begun_drives: list[Drive] = []

    def start() -> Drive:
        lab.service = Service(lab.store, lab.home, clock=lab.machine.clock, timer=lab.machine.clock)
        lab.services.append(lab.service)
        begun_drives.append(Drive(lab.service))
        return begun_drives[-1]

    yield start
    for each in GATES:
        each.open.set()
    for drive in begun_drives:
        drive.end()


def lane_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("lane "))


def test_campaigns_end_while_another_scheduler_is_being_waited_for(lab, gate, drive):
    slow = [lab.create(runner="slow") for _ in range(3)]
    drive()
    assert gate.began.wait(20)
    quick = lab.create()
    wait_for(lambda: lab.campaign(quick).state is CampaignState.COMPLETED)
    assert not any(lab.campaign(id).state.final for id in slow)
    gate.open.set()
    wait_for(lambda: all(lab.campaign(id).state is CampaignState.COMPLETED for id in slow))
    assert [lab.verdicts(id) for id in (*slow, quick)] == [["ok"] * 4] * 4
    assert set(lab.machine.sent.values()) == {1}
    wait_for(lambda: lane_threads() == [])


def test_a_scheduler_that_owes_an_answer_is_told_with_its_age_until_it_answers(lab, gate, drive, monkeypatch):
    monkeypatch.setattr(lanes, "SILENT_S", 0.05)
    slow = [lab.create(runner="slow") for _ in range(2)]
    quick = lab.create(budget={"trials": 2})
    running = drive()
    for id in slow:  # also the one that is not being asked for
        wait_for(lambda id=id: running.trouble(id) == "the runner: slow has not answered for 0 s")
    assert running.service.answers.ages_s()["slow"] > 0.05
    assert running.driver.lanes["slow"].trouble("the thread", 0.0).partition(": ")[2].startswith("campaign ")
    assert not running.driver.lanes["slow"].trouble("the thread", 20.0)
    wait_for(lambda: lab.campaign(quick).state.final)
    assert running.trouble(quick) == ""
    gate.open.set()
    wait_for(lambda: all(lab.campaign(id).state.final for id in slow))
    wait_for(lambda: running.driver.troubles == {})
    wait_for(lambda: running.service.answers.ages_s() == {})


def test_the_trouble_of_a_failed_look_says_for_how_long_there_has_been_no_answer(lab, gate, drive, monkeypatch):
    monkeypatch.setattr("meshtune.tuner.service.driving.loop.SILENT_S", 0.05)
    gate.failing = True
    gate.open.set()
    id = lab.create(runner="slow")
    running = drive()
    wait_for(lambda: running.trouble(id) == "the runner: no controller; no answer for 0 s")
    gate.failing = False
    wait_for(lambda: lab.campaign(id).state is CampaignState.COMPLETED)


def test_a_stuck_lane_holds_up_the_end_for_a_bounded_time_and_keeps_its_lease(lab, gate, drive, make, monkeypatch):
    """Nobody knows what it is about to send."""
    monkeypatch.setattr(lanes, "IDLE_END_S", 0.05)
    monkeypatch.setattr(lanes, "BUSY_END_S", 0.1)
    lab.machine.script = lambda name: make.Behaviour(run_s=1e9)
    slow, quick = lab.create(runner="slow"), lab.create()
    running = drive()
    assert gate.began.wait(20)
    wait_for(lambda: lab.trials(quick) and lab.trials(quick)[0].last.job_id)
    begun = time.monotonic()
    running.end()
    assert time.monotonic() - begun < 5.0
    assert lab.store.leases.driver(quick) == ""
    assert lab.store.leases.driver(slow) == running.service.sessions.holder.name
    assert lane_threads() == ["lane slow"]
    gate.open.set()
    wait_for(lambda: lane_threads() == [])


def test_a_campaign_that_a_tick_gave_back_is_ticked_again(lab, drive):
    """A runner without time left ends the session, for another runner object may have more."""
    lab.machine.closes = True
    id = lab.create()
    drive()
    for _ in range(3):
        wait_for(lambda: lab.campaign(id).state is CampaignState.PAUSED)
        lab.service.resume(id)
    lab.machine.closes = False
    wait_for(lambda: lab.campaign(id).state is CampaignState.PAUSED or lab.campaign(id).state.final)
    if lab.campaign(id).state is CampaignState.PAUSED:
        lab.service.resume(id)
    wait_for(lambda: lab.campaign(id).state is CampaignState.COMPLETED)
    assert lab.verdicts(id) == ["ok"] * 4


def test_a_campaign_that_another_process_took_leaves_its_lane_and_comes_back_to_it(lab, drive, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=200.0)
    id = lab.create()
    running = drive()
    wait_for(lambda: lab.trials(id) and lab.trials(id)[0].last.job_id)
    other = Service(lab.store, lab.home, clock=lab.machine.clock, timer=lab.machine.clock)
    lab.services.append(other)

    def taken() -> bool:
        lab.store.leases.leave(running.service.sessions.holder.name)
        other.sessions.holder.take([id])
        return id in other.sessions.holder.holds

    wait_for(taken)
    wait_for(lambda: running.trouble(id).startswith("driven by"))
    wait_for(lambda: lane_threads() == [])
    other.release(id)
    wait_for(lambda: running.service.sessions.get(id) is not None)
    lab.machine.script = lambda name: make.Behaviour()
    wait_for(lambda: lab.campaign(id).state is CampaignState.COMPLETED)
    assert set(lab.machine.sent.values()) == {1}


def test_a_campaign_that_was_taken_without_an_answer_is_driven(lab, drive, monkeypatch):
    take, taken = lab.store.leases.take, []

    def take_and_lose(holder, ids):
        found = take(holder, ids)
        monkeypatch.setattr(lab.store.leases, "take", take)
        taken.extend(found)
        raise StoreUnavailable("the connection was lost", transient=True)

    monkeypatch.setattr(lab.store.leases, "take", take_and_lose)
    id = lab.create()
    drive()
    wait_for(lambda: lab.campaign(id).state is CampaignState.COMPLETED)
    assert taken == [id]


def test_a_campaign_that_is_gone_and_cannot_be_given_back_costs_no_lane(lab, drive, monkeypatch):
    lost, good = lab.create(), lab.create()
    look, release, refused = Session.look, lab.store.leases.release, []

    def gone(session):
        if session.campaign.id == lost and not refused:
            raise NotFound("it was deleted")
        look(session)

    def refuse(lease):
        if len(refused) < 2:
            refused.append(lease.campaign_id)
            raise StoreUnavailable("no space", transient=True)
        release(lease)

    monkeypatch.setattr(Session, "look", gone)
    monkeypatch.setattr(lab.store.leases, "release", refuse)
    drive()
    wait_for(lambda: all(lab.campaign(id).state is CampaignState.COMPLETED for id in (lost, good)))
    assert refused[0] == lost


def test_searches_of_different_lanes_ask_one_at_a_time(lab, gate, drive):
    gate.open.set()
    asking, most = [0], [0]

    def think(space, seen, n):
        asking[0] += 1
        most[0] = max(most[0], asking[0])
        time.sleep(0.02)
        asking[0] -= 1
        return [plan for plan in space if plan not in {one.plan for one in seen}][:1]

    lab.search.say = think
    ids = [lab.create(runner=kind, budget={"trials": 6}) for kind in ("slow", "fake")]
    drive()
    wait_for(lambda: all(lab.campaign(id).state.final for id in ids))
    assert most == [1]


def test_a_specs_unreadable_row_is_the_trouble_of_its_campaign_alone(lab, drive, monkeypatch):
    bad, good = lab.create(), lab.create()
    read = lab.store.campaign
    monkeypatch.setattr(lab.store, "campaign", lambda id: 1 / 0 if id == bad else read(id))
    running = drive()
    wait_for(lambda: read(good).state is CampaignState.COMPLETED)
    assert "ZeroDivisionError" in running.trouble(bad)


def test_more_schedulers_than_lanes_share_the_lane_of_their_kind(lab, drive, monkeypatch):
    monkeypatch.setattr(lanes, "MAX_LANES", 1)
    monkeypatch.setattr(rounds, "scheduler_name", lambda kind, options: f"{kind} at={next(names)}")
    names = iter("abc")
    ids = [lab.create() for _ in range(3)]
    running = drive()
    wait_for(lambda: set(running.driver.lanes) == {"fake at=a", "fake"} or lab.campaign(ids[2]).state.final)
    wait_for(lambda: all(lab.campaign(id).state is CampaignState.COMPLETED for id in ids))


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("local", {"slots": 4}, "local"),
        ("slurm", {"mode": "job", "partition": "a"}, "slurm"),
        ("slurm", {"mode": "allocation"}, "slurm mode=allocation"),
        ("ray", {"address": None}, "ray"),
        ("ray", {"address": "ray://a:1"}, "ray address=ray://a:1"),
    ],
)
def test_schedulers_are_told_apart_by_what_they_are_asked_at_and_not_by_what_is_asked(kind, options, name):
    assert scheduler_name(kind, options) == name


def test_an_answer_from_memory_settles_no_question_that_failed_before_it():
    now = [100.0]
    answers = SchedulerSilence(lambda: now[0])

    def ask(age_s, error=None):
        with answers.asking("s", lambda: age_s):
            if error is not None:
                raise error

    def fail():
        with pytest.raises(RunnerUnavailable):
            ask(0.0, RunnerUnavailable("silent"))

    ask(3.0)
    assert (answers.silence_s("s"), answers.ages_s()) == (0.0, {"s": 3.0})
    fail()
    now[0] += 7.0
    ask(8.0)  # what was seen before it failed
    ask(None)  # our own files
    assert (answers.silence_s("s"), answers.ages_s()) == (7.0, {"s": 7.0})
    with pytest.raises(ValueError, match="refused"):
        ask(0.0, ValueError("refused"))
    assert (answers.silence_s("s"), answers.ages_s()) == (0.0, {"s": 0.0})
