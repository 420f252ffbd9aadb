"""Ends of a search and of a campaign: too little left, nothing to propose, no hope, no time; and their words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.eligibility import eligible
from meshtune.tuner.campaign.second_runs import finalists
from meshtune.tuner.campaign.spec import StopRule
from meshtune.tuner.campaign.stopping import (
    MIN_MEASURED,
    hopeless_reason,
    loses_every_job,
    phase_text,
    search_end,
    signature,
)
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
    assert phase(trials, search_ended="enough") == "second runs, round 1 of at most 14, 0 done: enough"
    trials.append(make.trial(3, make.measurement(1.0), origin=Origin.CONFIRMATION, plan=trials[0].plan))
    trials.append(make.trial(4, state=TrialState.RUNNING, origin=Origin.CONFIRMATION, plan=trials[1].plan))
    assert (
        phase(trials, CampaignState.PAUSED, search_ended="enough")
        == "second runs, round 1 of at most 14, 1 done: enough"
    )


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
    assert finalists(spec, trials, eligible(spec, trials)) == plans[:4]
    front_first = finalists(replace(spec, pareto=True), trials, eligible(spec, trials))
    assert front_first == [plans[0], plans[2], plans[4], plans[1]]


BUG = "ModuleNotFoundError: No module named 'megatron'"


def crashed(reason, log="", cause=None):
    return Outcome(verdict=Verdict.CRASHED, reason=reason, log_tail=log, cause=cause)


def test_a_reason_that_no_plan_can_change_is_enough_once_and_the_log_is_shown(make):
    log = "\n".join(f"line {number}" for number in range(40)) + f"\n\x1b[31m{BUG}\x1b[0m\r\n\n"
    told = hopeless_reason([make.trial(0, Verdict.OOM), make.trial(1, crashed(BUG, log, Cause.USER_BUG))]).splitlines()
    why = "trial 1 failed for a reason that no plan can change"
    assert told[0] == f"{why}: {BUG}; mend it and start a new campaign"
    assert told[1:] == [*(f"line {number}" for number in range(26, 40)), BUG]


def test_one_measurement_is_proof_that_there_is_hope(make):
    bug = crashed(BUG, cause=Cause.USER_BUG)
    trials = [make.trial(0, make.measurement(1.0)), *(make.trial(number, bug) for number in range(1, 5))]
    assert hopeless_reason(trials) == ""
    assert hopeless_reason(trials[1:])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 3 exited with code 1", "rank 0 exited with code 1"),
        ("RuntimeError: CUDA error at 0x7f3a12 after 3.25 s", "RuntimeError: CUDA error at 0xbeef00 after 17 s"),
        ("FileNotFoundError: /home/a/t0000-a1/data.bin", "FileNotFoundError: /home/a/t0001-a1/data.bin"),
        ("no such tokenizer: ../x/tok.json, giving up", "no such tokenizer: /y/tok.json, giving up"),
        ("job deadbeef0123 broke", "job 0123deadbeef broke"),
    ],
)
def test_crashes_are_alike_but_for_numbers_addresses_and_paths(make, one, other):
    assert signature(make.trial(0, crashed(one))) == signature(make.trial(1, crashed(other)))
    assert signature(make.trial(0, crashed("rank 1 broke", f"x\n{one}\n\n"))) == signature(
        make.trial(1, crashed("rank 0 broke", other))
    )


def test_crashes_with_other_words_are_not_alike(make):
    assert signature(make.trial(0, crashed("it broke"))) != signature(make.trial(1, crashed("it fell")))
    assert signature(make.trial(0, crashed("it broke", "a"))) != signature(make.trial(1, crashed("it broke", "b")))


def test_three_plans_that_crash_alike_are_enough(make):
    trials = [make.trial(number, crashed(f"rank {number} exited with code 9")) for number in range(3)]
    told = "trials 0, 1, 2 crashed in the same way, and no trial was measured: rank 2 exited with code 9"
    assert hopeless_reason(trials) == f"{told}; mend it and start a new campaign"
    assert hopeless_reason(trials[:2]) == ""
    running = make.trial(3, state=TrialState.RUNNING)
    assert hopeless_reason([*trials, running]) == hopeless_reason(trials)
    assert hopeless_reason([*trials, make.trial(3, Verdict.CANCELLED)]) == hopeless_reason(trials)


def refused(trial):
    return replace(trial, attempts=(replace(trial.last, job_id=None),))


def test_three_plans_whose_jobs_are_invalid_are_enough_where_none_was_ever_sent(make):
    illegal = Outcome(verdict=Verdict.ILLEGAL, reason="the job has an empty command")
    invalid = [refused(make.trial(number, illegal)) for number in range(3)]
    told = "the runner could send no job of 3 plans: trial 0: the job has an empty command"
    assert hopeless_reason(invalid) == f"{told}; mend it and start a new campaign"
    assert hopeless_reason([*invalid, make.trial(3)]) == hopeless_reason(invalid)
    assert hopeless_reason(invalid[:2]) == ""
    assert hopeless_reason([*invalid, make.trial(3, Verdict.OOM)]) == ""
    # They were sent: the jobs themselves said so.
    assert hopeless_reason([make.trial(number, illegal) for number in range(3)]) == ""


def lost(make, number, at, *, attempts=2):
    trial = make.trial(number, Outcome(verdict=Verdict.LOST, reason=f"node n{number} is down"), attempt=attempts)
    return replace(trial, attempts=(*trial.attempts[:-1], replace(trial.last, finished_at=at)))


def test_three_trials_lost_in_all_attempts_one_after_the_other_are_too_many(lab, make):
    spec = lab.spec(trial={"attempts": 2})
    campaign = make.campaign(spec)
    trials = [lost(make, number, 10.0 - number) for number in range(3)]
    told = "the cluster loses every job: the last 6 jobs, of 3 trials, were lost; the last one: node n0 is down"
    assert loses_every_job(campaign, trials) == told
    assert loses_every_job(campaign, trials[:2]) == ""
    # One attempt is left: it is tried again first.
    assert loses_every_job(campaign, [*trials[:2], lost(make, 2, 8.0, attempts=1)]) == ""
    # Resumed since the first of them.
    assert loses_every_job(replace(campaign, running_since=8.0), trials) == ""
    assert loses_every_job(replace(campaign, running_since=7.9), trials) == told
    better = make.trial(3, Verdict.OOM, finished_at=11.0)
    assert loses_every_job(campaign, [*trials, better]) == ""
    earlier = make.trial(3, Verdict.OOM, finished_at=1.0)
    assert loses_every_job(campaign, [*trials, earlier]) == told


# Whole campaigns


def test_a_cluster_that_loses_every_job_pauses_the_campaign_and_each_resume_tries_again(lab, make):
    lab.machine.script = lambda name: make.Behaviour("lost")
    id = lab.create(budget={"trials": 9}, trial={"attempts": 2})
    for trials in (3, 6):
        lab.run(id, until=lambda: lab.campaign(id).state is CampaignState.PAUSED)
        assert lab.verdicts(id) == ["lost"] * trials
        assert "the cluster loses every job: the last 6 jobs, of 3 trials" in lab.campaign(id).reason
        lab.now += 1.0
        lab.service.resume(id)
    lab.machine.script = lambda name: make.Behaviour()
    lab.run(id)
    assert lab.verdicts(id) == ["lost"] * 6 + ["ok"] * 3
    assert lab.campaign(id).state is CampaignState.COMPLETED


# No time left


def test_a_runner_with_no_time_left_pauses_the_campaign_and_another_goes_on(lab, make):
    id = lab.create(parallel=2, budget={"trials": 6})
    lab.run(id, until=lambda: sum(trial.measurement is not None for trial in lab.trials(id)) >= 2)
    lab.run(id, until=lambda: lab.trials(id)[-1].state is TrialState.PLANNED)
    lab.machine.closes = True
    lab.run(id, until=lambda: lab.campaign(id).state is CampaignState.PAUSED)
    assert lab.campaign(id).reason == "12 s are left, and a trial may take 300 s; resume it to go on"
    assert lab.service.sessions.get(id) is None  # the next runner may have time
    planned = [trial.number for trial in lab.trials(id) if trial.state is TrialState.PLANNED]
    assert planned
    # What runs is measured to its end; what is planned waits.
    for _ in range(10):
        lab.tick(id, 0.5)
    assert {trial.state for trial in lab.trials(id)} == {TrialState.PLANNED, TrialState.DONE}
    lab.service.close()
    lab.machine.closes = False
    lab.open().resume(id)
    lab.run(id)
    assert lab.verdicts(id) == ["ok"] * 6
    assert set(lab.machine.sent.values()) == {1}
    assert [len(trial.attempts) for trial in lab.trials(id)] == [1] * 6
