"""The end of a search and the confirmations after it, through the whole loop."""

from __future__ import annotations

import pytest

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Choice, Expectation, Origin, Proposal, TrialState

EXPECTATION = Expectation(
    step_time_s=1.0, step_time_low_s=0.5, step_time_high_s=2.0, p_fits=0.9, gain=0.03, peak_bytes=2.0**30
)
CONFIRMATION = Origin.CONFIRMATION


def fresh(space, seen, n, chance=None, expectation=None):
    """The first n plans that were not tried."""
    tried = {one.plan for one in seen}
    plans = [plan for plan in space if plan not in tried]
    return Proposal(tuple(Choice(plan, expectation) for plan in plans[:n]), chance)


def again(lab, id):
    return [trial for trial in lab.trials(id) if trial.origin is CONFIRMATION]


def enough_after(trials):
    """A search that says that nothing is left once it sees so many trials."""
    return lambda space, seen, n: fresh(space, seen, n, 0.2 if len(seen) < trials else 0.008)


def test_with_several_in_flight_the_last_word_plans_nothing_and_what_runs_is_awaited(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=5.0 if "-t0003" in name else 1.0)
    lab.search.say = enough_after(4)
    id = lab.create(parallel=2, budget={"trials": 9}, confirm=3)
    lab.run(id, until=lambda: lab.campaign(id).search_ended)
    assert lab.trials(id)[3].state is TrialState.RUNNING
    lab.run(id, until=lambda: again(lab, id))
    assert [trial.state for trial in lab.trials(id)[:4]] == [TrialState.DONE] * 4
    asked = len(lab.search.asked)
    lab.run(id)
    assert (len(lab.search.asked), len(lab.trials(id))) == (asked, 7)
    assert lab.machine.most_at_once == 2


@pytest.mark.parametrize("chance", [-0.1, 1.1, float("nan")])
def test_a_chance_that_is_no_probability_is_the_searchs_failure(lab, chance):
    lab.search.say = lambda space, seen, n: fresh(space, seen, n, chance)
    id = lab.create()
    lab.run(id)
    assert lab.campaign(id).state is CampaignState.FAILED
    assert lab.campaign(id).reason.endswith(f"it gave the chance left as {chance}, which is no probability")
    assert lab.trials(id) == []


def test_what_was_expected_stays_with_the_trial_and_nothing_is_expected_of_a_confirmation(lab):
    lab.search.say = lambda space, seen, n: fresh(space, seen, n, expectation=EXPECTATION)
    id = lab.create(baseline={"tp": 1}, confirm=1)
    lab.run(id)
    assert [trial.expectation for trial in lab.trials(id)] == [None, *[EXPECTATION] * 3, None]
