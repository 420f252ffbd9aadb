"""Campaigns within the quotas of the token that created them: refused, waiting, paused, and going on."""

import pytest

from meshtune.tuner.access.quotas import QuotaExceeded, require_room
from meshtune.tuner.access.tokens import Quotas, Scope, Token, Used, digest
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Budget
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.service.quotas import ADD_UP_EVERY_S

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
    assert "3 of 3 trials of the token ann were planned within 24 h" in driver.troubles[id]
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
