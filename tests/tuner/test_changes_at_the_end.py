"""Changes that are accepted while a campaign ends: none is lost, however narrowly it comes before the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_lab import ServiceLab
from specs import simulated

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.changes import CannotChange
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.store import IllegalMove

pytestmark = pytest.mark.slow

# Each takes two of the requests that may come at once.
CAMPAIGNS = 10


@pytest.fixture
def before(lab, monkeypatch) -> Callable[[str, Callable[[], object]], list[object]]:
    """Do something once, right before the driver's next call of this method of the store; what came of it."""

    def patch(method: str, act: Callable[[], object]) -> list[object]:
        real, done = getattr(lab.store, method), []

        def call(*arguments: Any, **named: Any) -> Any:
            monkeypatch.setattr(lab.store, method, real)
            done.append(act())
            return real(*arguments, **named)

        monkeypatch.setattr(lab.store, method, call)
        return done

    return patch


def test_a_second_run_that_is_accepted_while_the_campaign_closes_is_made(lab, before):
    id = lab.create(budget={"trials": 2})
    done = before("move_campaign", lambda: lab.service.changing.rerun(id, 0))
    lab.run(id)
    assert len(done) == 1
    assert lab.campaign(id).state is CampaignState.COMPLETED
    assert lab.verdicts(id) == ["ok"] * 3


@pytest.mark.parametrize("method", ["end_search", "move_campaign"])
def test_a_budget_that_is_raised_while_a_search_or_a_campaign_ends_is_used(lab, before, method):
    id = lab.create(budget={"trials": 2})
    done = before(method, lambda: lab.service.changing.change(id, {"budget": {"trials": 4}}))
    lab.run(id)
    assert len(done) == 1
    assert lab.campaign(id).state is CampaignState.COMPLETED
    assert lab.verdicts(id) == ["ok"] * 4


def test_a_budget_of_time_that_ended_second_runs_is_raised_for_them_alone(lab):
    # Of three jobs, each of a second on four devices; both plans were to run again.
    id = lab.create(baseline={"zero_stage": 1}, confirm=1, budget={"trials": 2, "device_hours": 11 / 3600})
    lab.run(id)
    assert (lab.campaign(id).state, len(lab.trials(id))) == (CampaignState.COMPLETED, 3)
    with pytest.raises(CannotChange, match="device-hours is spent"):
        lab.service.changing.change(id, {"budget": {"device_hours": 10 / 3600}})
    lab.service.changing.change(id, {"budget": {"device_hours": 1}})
    lab.run(id)
    assert [trial.round for trial in lab.trials(id)][:4] == [0, 0, 1, 1]
    with pytest.raises(CannotChange, match="2 of 2 trials are planned; name more"):
        lab.service.changing.change(id, {"budget": {"device_hours": 2}})


def test_a_budget_that_is_lowered_while_the_search_is_asked_is_kept_to(lab, before):
    id = lab.create(budget={"trials": 4}, parallel=4)
    before("plan_trials", lambda: lab.service.changing.change(id, {"budget": {"trials": 2}}))
    lab.run(id)
    assert lab.verdicts(id) == ["ok"] * 2


def test_a_plan_put_in_while_a_campaign_fails_is_tried(lab, before):
    lab.machine.largest = 3
    id = lab.create(budget={"trials": 4})
    plan = list(space_of(lab.spec()))[-1]
    done = before("move_campaign", lambda: lab.service.changing.enqueue(id, plan))
    lab.run(id)
    assert len(done) == 1
    assert lab.campaign(id).state is CampaignState.FAILED
    assert lab.verdicts(id) == ["cancelled"] * 2


def test_what_has_ended_for_good_meanwhile_takes_no_second_run(lab, before):
    id = lab.create(budget={"trials": 2}, search="grid")
    lab.run(id, until=lambda: lab.verdicts(id) == ["ok", "ok"])

    def end() -> None:
        lab.service.cancel(id)
        lab.run(id)

    before("repeat_plans", end)
    with pytest.raises((CannotChange, IllegalMove), match="cancelled"):
        lab.service.changing.rerun(id, 0)
    assert lab.campaign(id).state is CampaignState.CANCELLED
    assert len(lab.trials(id)) == 2


def test_a_real_service_loses_no_change_that_it_accepted_at_the_end_of_a_campaign(tmp_path: Path):
    accepted: dict[str, int] = {}
    with ServiceLab(tmp_path) as service:
        for _ in range(CAMPAIGNS):
            id = service.call("POST", "/v1/campaigns", simulated(budget={"trials": 1}, confirm=0))["id"]
            # The moment that counts is right after the last trial has ended.
            while not service.call("GET", f"/v1/campaigns/{id}")["trials"].get("ok"):
                time.sleep(0.02)
            accepted[id] = service.call("POST", f"/v1/campaigns/{id}/trials/0:rerun")["number"]
        for id, number in accepted.items():
            path = f"/v1/campaigns/{id}/trials/{number}"
            service.wait(lambda path=path: service.call("GET", path)["state"] == "done", 30.0)
