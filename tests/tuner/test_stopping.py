"""When a search has said its last word, and in which words a campaign tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import StopRule
from meshtune.tuner.campaign.stopping import MIN_MEASURED, finalists, phase_text, search_end
from meshtune.tuner.campaign.trial import Choice, Origin, Proposal, TrialState

PLANS = (Choice(Plan(tp=4)),)


@pytest.fixture
def end(lab, make):
    """Why the search ends with a proposal, after these trials."""

    def why(trials, *, choices=(), chance=None, untried=41, **over):
        campaign = make.campaign(replace(lab.spec(), **over), legal=50)
        return search_end(campaign, trials, Proposal(choices, chance), untried)

    return why


def measured(make, count):
    return [make.trial(number, make.measurement(1.0 + number)) for number in range(count)]


def test_the_search_ends_when_too_little_is_left_and_says_the_number(end, make):
    assert end(measured(make, 3), choices=PLANS, chance=0.008) == (
        "the probability that any of the 41 untried plans beats the best by more than 2 % is 0.8 %"
    )


def test_the_tolerance_and_what_is_sought_are_the_specs(end, make):
    over = {"stop": StopRule(tolerance=0.07, chance=0.5), "pareto": True}
    assert end(measured(make, 3), choices=PLANS, chance=0.2, untried=1, **over) == (
        "the probability that the one untried plan extends the front by more than 7 % is 20 %"
    )


@pytest.mark.parametrize(("chance", "ends"), [(0.0499, True), (0.05, False), (0.5, False), (None, False)])
def test_only_a_chance_below_the_specs_ends_it(end, make, chance, ends):
    assert bool(end(measured(make, 3), choices=PLANS, chance=chance)) is ends


def test_with_few_measured_plans_the_search_is_not_believed(end, make):
    failed = [make.trial(number, verdict) for number, verdict in enumerate((Verdict.OOM, Verdict.CRASHED), start=9)]
    few = measured(make, MIN_MEASURED - 1)
    assert end([*few, *failed, make.trial(20, state=TrialState.RUNNING)], choices=PLANS, chance=0.0) == ""
    assert end([*measured(make, MIN_MEASURED), *failed], choices=PLANS, chance=0.0)


def test_a_search_with_nothing_to_propose_has_ended_when_nothing_runs(end, make):
    trials = measured(make, 2)
    assert end(trials) == "the search fake proposes no further plan"
    assert end([*trials, make.trial(2, state=TrialState.RUNNING)]) == ""


def test_an_exhausted_space_ends_the_search_whatever_still_runs(end, make):
    trials = [make.trial(0, make.measurement(1.0)), make.trial(1, state=TrialState.RUNNING)]
    words = "every one of the 50 legal plans has been tried"
    assert end(trials, untried=0) == words
    assert end(measured(make, 3), untried=0, chance=0.0) == words


# What people read meanwhile


@pytest.fixture
def phase(lab, make):
    """What a campaign with these trials does now."""

    def text(trials, state=CampaignState.RUNNING, *, confirm=2, **over):
        return phase_text(make.campaign(replace(lab.spec(), confirm=confirm), state, **over), trials)

    return text


def test_a_campaign_that_searches_says_what_the_search_said_last(phase, make):
    assert phase([]) == "searching"
    assert phase(measured(make, 1), chance_left=0.31) == (
        "searching: the probability that an untried plan beats the best by more than 2 % is 31 %"
    )


def test_a_campaign_that_confirms_says_how_far_it_is(phase, make):
    trials = measured(make, 3)
    assert phase(trials, search_ended="enough") == "confirming the best 2, 0 done: enough"
    assert phase(trials, search_ended="enough", confirm=1) == "confirming the best one, 0 done: enough"
    trials.append(make.trial(3, make.measurement(1.0), origin=Origin.CONFIRMATION, plan=trials[0].plan))
    trials.append(make.trial(4, state=TrialState.RUNNING, origin=Origin.CONFIRMATION, plan=trials[1].plan))
    assert phase(trials, CampaignState.PAUSED, search_ended="enough") == "confirming the best 2, 1 done: enough"


def test_before_and_without_confirmations_the_end_of_the_search_is_said(phase, make):
    trials = measured(make, 3)
    assert phase(trials, search_ended="enough", confirm=0) == "the search has ended: enough"
    waiting = [*trials, make.trial(3, state=TrialState.RUNNING)]
    assert phase(waiting, search_ended="enough") == "the search has ended: enough"


def test_with_two_objectives_the_front_is_measured_again_before_what_is_only_fast(lab, make):
    # (seconds, bytes): the second is slower and fuller than the first, the third slower and leaner.
    runs = [(1.0, 50), (1.1, 60), (1.2, 40), (1.3, 45), (1.4, 10)]
    plans = [Plan(tp=1, micro_batch_size=size) for size in range(1, 6)]
    trials = [
        make.trial(number, make.measurement(step, peak_held_bytes=(peak,) * 4), plan=plan)
        for number, ((step, peak), plan) in enumerate(zip(runs, plans, strict=True))
    ]
    spec = replace(lab.spec(), confirm=4)
    assert finalists(spec, trials) == plans[:4]
    assert finalists(replace(spec, pareto=True), trials) == [plans[0], plans[2], plans[4], plans[1]]
