"""Two services on one store and home: each campaign is one's, and who sleeps through its lease doubles nothing.

Time is the lab's, for the database and for the holders alike; a service sleeps while another one acts in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from jobs import wait_for

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.leases import CampaignBusy, Holder, to_release, to_take
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.trouble import Trouble, TroubleKind
from meshtune.tuner.store import Drivers, LeaseLost

pytestmark = pytest.mark.slow

LEASE_S = 10.0


@pytest.fixture(autouse=True)
def clocks(lab, monkeypatch):
    monkeypatch.setattr(lab.store._database, "_clock", lambda: lab.now)


def open_service(lab, lease_s: float = LEASE_S, *, provable: bool = False) -> Service:
    """A service more on the lab's store. provable: others see at once when it has died."""
    service = Service(lab.store, lab.home, clock=lambda: lab.now, timer=lambda: lab.now)
    service.sessions.holder = Holder(lab.store, lab.home, lease_s, clock=lambda: lab.now)
    if not provable:
        service.sessions.holder._prove = lambda: None
    lab.services.append(service)
    return service


def finish(lab, service, id) -> None:
    lab.service = service
    lab.run(id)


@pytest.fixture
def sleeping(make, monkeypatch):
    """Call `sleep` in the next `act` of the runner, before or after it is done."""

    def patch(act: str, sleep: Callable[[Any], None], *, after: bool = False) -> None:
        real = getattr(make.FakeRunner, act)

        def once(runner: Any, argument: Any) -> Any:
            monkeypatch.setattr(make.FakeRunner, act, real)
            if not after:
                sleep(argument)
                return real(runner, argument)
            answer = real(runner, argument)
            sleep(argument)
            return answer

        monkeypatch.setattr(make.FakeRunner, act, once)

    return patch


def tick_until_lost(lab, service, id) -> None:
    """The sleeper goes on until it finds out."""

    def ticks():
        for _ in range(20):
            service.tick(id)

    with pytest.raises(CampaignBusy, match=f"has campaign {id} now"):
        ticks()


def attempts(lab, id, number=0) -> list[tuple[str, str | None]]:
    found = lab.trials(id)[number].attempts
    return [(str(each.outcome and each.outcome.verdict), each.job_id) for each in found]


def test_a_campaign_is_one_services_until_it_lets_go_or_is_not_heard_of_for_a_lease(lab):
    id = lab.create()
    first, second = open_service(lab), open_service(lab)
    first.tick(id)
    with pytest.raises(CampaignBusy, match=r"process .+:\d+ is working on campaign " + id):
        second.tick(id)
    lab.now += LEASE_S - 0.1
    with pytest.raises(CampaignBusy):
        second.tick(id)
    lab.now += 0.1
    assert second.tick(id)
    with pytest.raises(CampaignBusy):
        first.tick(id)
    assert first.sessions.get(id) is None
    second.release(id)
    assert first.tick(id)
    finish(lab, first, id)
    assert lab.verdicts(id) == ["ok"] * 4


class Died(BaseException):
    """Nothing of the service comes after this."""


@pytest.mark.parametrize("away_s", [0.0, 3 * LEASE_S])
@pytest.mark.parametrize("provable", [True, False])
def test_what_a_service_was_sending_when_it_died_is_given_up_only_where_nobody_can_know_that_it_did(
    away_s, provable, lab, sleeping
):
    def die(spec):
        raise Died

    id = lab.create()
    sleeping("submit", die)
    lab.service = open_service(lab, provable=provable)
    with pytest.raises(Died):
        lab.run(id)
    lab.kill()
    lab.now += away_s
    other = open_service(lab)
    if not (provable or away_s):
        with pytest.raises(CampaignBusy):
            other.tick(id)
        lab.now += LEASE_S
    finish(lab, other, id)
    lost = [] if provable else [("lost", None)]
    assert attempts(lab, id) == [*lost, ("ok", f"id-{id}-t0000-a{1 + len(lost)}")]
    assert lab.verdicts(id) == ["ok"] * 4
    assert lab.machine.sent.total() == 4


def test_a_service_that_lives_is_never_buried(lab):
    first, second = open_service(lab, provable=True), open_service(lab)
    id = lab.create()
    first.tick(id)
    assert not second.sessions.holder.bury(first.sessions.holder.name)
    first.close()
    assert not list((lab.home.root / "holders").iterdir())


def test_a_file_from_before_a_reboot_or_of_another_machine_proves_nothing(lab):
    first, second = open_service(lab, provable=True), open_service(lab)
    id = lab.create()
    first.tick(id)
    (file,) = (lab.home.root / "holders").iterdir()
    file.write_bytes(b"another boot")
    lab.service = first
    lab.kill()
    assert not second.sessions.holder.bury(first.sessions.holder.name)


# A service that sleeps through its lease


def test_a_job_that_was_given_up_is_called_back_by_the_one_that_sends_it_late(lab, sleeping):
    id = lab.create()
    other = open_service(lab)

    def sleep(spec):
        lab.now += LEASE_S
        assert other.tick(id)
        assert attempts(lab, id) == [("lost", None)]

    sleeping("submit", sleep)
    tick_until_lost(lab, open_service(lab), id)
    (late,) = lab.machine.jobs
    assert lab.machine.cancels == [f"id-{late}"]
    finish(lab, other, id)
    assert attempts(lab, id) == [("lost", None), ("ok", f"id-{id}-t0000-a2")]
    assert lab.trials(id)[0].attempts[0].outcome.reason == "its service vanished while sending it"
    assert lab.verdicts(id) == ["ok"] * 4
    assert set(lab.machine.sent.values()) == {1}
    assert len(lab.machine.jobs) == 5


@pytest.mark.parametrize(
    ("act", "after", "looks"),
    [
        pytest.param("find", False, True, id="before it marked the attempt, so that it sends nothing"),
        pytest.param("submit", False, False, id="before it sent, while the other one did not look yet"),
        pytest.param("submit", True, True, id="after it sent"),
    ],
)
def test_a_job_is_sent_once_wherever_its_sender_slept(lab, sleeping, act, after, looks):
    id = lab.create()
    other = open_service(lab)

    def sleep(_):
        lab.now += LEASE_S
        if looks:
            finish(lab, other, id)
        else:
            other.sessions.holder.take([id])

    sleeping(act, sleep, after=after)
    tick_until_lost(lab, open_service(lab), id)
    finish(lab, other, id)
    assert lab.verdicts(id) == ["ok"] * 4
    assert attempts(lab, id) == [("ok", f"id-{id}-t0000-a1")]
    assert (lab.machine.cancels, lab.machine.sent.total()) == ([], 4)


def test_a_late_job_that_comes_between_the_look_and_the_giving_up_is_called_back(lab, make, sleeping, monkeypatch):
    id = lab.create()
    other = open_service(lab)
    real = lab.store.finish

    def sleep(spec):
        def finish(*arguments, **named):
            make.FakeRunner(lab.machine).submit(spec)
            monkeypatch.setattr(lab.store, "finish", real)
            return real(*arguments, **named)

        lab.now += LEASE_S
        monkeypatch.setattr(lab.store, "finish", finish)
        assert other.tick(id)
        assert lab.machine.cancels == [f"id-{spec.name}"]

    sleeping("submit", sleep)
    tick_until_lost(lab, open_service(lab), id)
    finish(lab, other, id)
    assert attempts(lab, id) == [("lost", None), ("ok", f"id-{id}-t0000-a2")]


def test_who_slept_after_it_marked_the_attempt_looks_at_the_clock_and_sends_nothing(lab, monkeypatch):
    id = lab.create()
    first, other = open_service(lab), open_service(lab)
    mark = lab.store.leases.mark_sending

    def marking(lease, name):
        monkeypatch.setattr(lab.store.leases, "mark_sending", mark)
        assert mark(lease, name)
        lab.now += LEASE_S
        finish(lab, other, id)
        return True

    monkeypatch.setattr(lab.store.leases, "mark_sending", marking)
    tick_until_lost(lab, first, id)
    assert attempts(lab, id) == [("lost", None), ("ok", f"id-{id}-t0000-a2")]
    assert f"{id}-t0000-a1" not in lab.machine.jobs
    assert lab.machine.sent.total() == 4


def test_a_cancelled_campaign_leaves_no_late_job_behind(lab, sleeping):
    id = lab.create()
    other = open_service(lab)

    def sleep(spec):
        lab.now += LEASE_S
        other.cancel(id)
        finish(lab, other, id)

    sleeping("submit", sleep)
    tick_until_lost(lab, open_service(lab), id)
    assert lab.campaign(id).state is CampaignState.CANCELLED
    assert lab.verdicts(id) == ["cancelled"]
    assert lab.machine.cancels == [f"id-{id}-t0000-a1"]


def test_who_woke_up_knows_that_it_lost_the_campaign_though_it_lives_again(lab):
    id = lab.create()
    first, other = open_service(lab), open_service(lab)
    first.tick(id)
    hold = first.sessions.holder.holds[id]
    hold.confirm()
    lab.now += LEASE_S
    other.tick(id)
    first.sessions.holder.renew()  # as its heartbeat does
    with pytest.raises(LeaseLost):
        hold.confirm()


# Heartbeats, orders, and what a service knows


def test_a_tick_that_thinks_for_longer_than_a_lease_does_not_lose_it(lab, monkeypatch):
    id = lab.create()
    first, other = open_service(lab, 0.2), open_service(lab, 0.2)  # a beat every 0.05 s of the wall's clock
    renew, renewed_at = lab.store.leases.renew, [0.0]

    def renewing(holder, *more, **named):
        begun = lab.now
        ahead_s = renew(holder, *more, **named)
        if holder == first.sessions.holder.name:
            renewed_at.append(begun)
        return ahead_s

    monkeypatch.setattr(lab.store.leases, "renew", renewing)
    with first.sessions.holder.beating(serves=False):
        first.tick(id)
        for _ in range(20):
            lab.now += 0.15
            with pytest.raises(CampaignBusy):
                other.tick(id)
            wait_for(lambda: renewed_at[-1] == lab.now)
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "heartbeat"])


def test_orders_to_any_service_reach_the_one_that_drives(lab):
    id = lab.create(parallel=1)
    first, other = open_service(lab), open_service(lab)
    lab.service = first
    lab.run(id, until=lambda: len(lab.trials(id)) == 2)
    other.pause(id)
    for _ in range(20):
        lab.tick(id, 1.0)
    assert len(lab.trials(id)) == 2
    other.resume(id)
    lab.run(id, until=lambda: len(lab.trials(id)) == 3)
    other.cancel(id)
    lab.run(id)
    assert lab.campaign(id).state is CampaignState.CANCELLED


# Many campaigns


def test_each_server_takes_as_many_as_the_others_and_the_oldest_first():
    drivers = Drivers({"a": "", "b": "me", "c": "other", "d": "", "e": ""}, servers=2)
    assert to_take(drivers, "me") == ["a", "d"]
    assert to_take(Drivers(drivers.by_campaign, servers=1), "me") == ["a", "d", "e"]
    assert to_take(drivers, "third") == ["a", "d", "e"]
    assert to_take(Drivers({}, servers=0), "me") == []


def test_a_server_gives_back_what_is_far_above_its_share_and_nothing_for_a_small_difference():
    many = {f"c{number}": "me" for number in range(100)}
    assert to_release(Drivers(many, servers=1), "me") == []
    assert to_release(Drivers(many, servers=2), "me") == [f"c{number}" for number in range(50, 100)]
    assert to_release(Drivers(many | {f"d{number}": "other" for number in range(70)}, servers=2), "me") == []
    assert to_release(Drivers({"a": "me", "b": "me", "c": "me"}, servers=2), "me") == []


def test_a_server_leaves_what_another_process_drives_alone_and_says_who_does(lab):
    run, server = open_service(lab), open_service(lab)
    own = run.create(lab.document(), drives=True).id
    free = lab.create()
    driver, stop = Driver(server), threading.Event()

    def watch():
        if lab.campaign(free).state.final:
            stop.set()
        lab.now += 0.1

    drive_all(driver, server, stop, watch)
    told = f"driven by {run.sessions.holder.name.rpartition(':')[0]}"
    assert driver.troubles == {own: Trouble(told, TroubleKind.ELSEWHERE)}
    assert lab.trials(own) == []
    finish(lab, run, own)
    assert lab.verdicts(own) == lab.verdicts(free) == ["ok"] * 4


def test_a_lease_is_trusted_from_before_its_renewal_was_asked_for(lab, monkeypatch):
    id = lab.create()
    first = open_service(lab)
    renew = lab.store.leases.renew

    def slowly(*arguments, **named):
        ahead_s = renew(*arguments, **named)
        lab.now += 5.0
        return ahead_s

    first.tick(id)
    hold = first.sessions.holder.holds[id]
    monkeypatch.setattr(lab.store.leases, "renew", slowly)
    first.sessions.holder.renew()
    asked = []
    monkeypatch.setattr(lab.store.leases, "renew", lambda *arguments, **named: asked.append(1) or 0.0)
    lab.now += 3.9
    hold.confirm()
    assert not asked
    lab.now += 0.2
    hold.confirm()
    assert asked
