"""decide(), as tables of situations; test_crashes.py has whole campaigns that go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.base import Cause, JobState, JobStatus, WorkerLease
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.runners.registry import EXTERNAL
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.decide import (
    GRACE_S,
    OVERTIME_S,
    AskSearch,
    Cancel,
    Close,
    Confirm,
    EndClaim,
    EndSearch,
    Finish,
    MarkRunning,
    NoteWait,
    Pause,
    PlanBaseline,
    PolledJob,
    Retry,
    Submit,
    decide,
)
from meshtune.tuner.campaign.spec import Backend, Budget, TrialLimits
from meshtune.tuner.campaign.trial import MAX_ATTEMPTS, Origin, TrialState
from meshtune.tuner.campaign.waiting import MAX_WAIT
from meshtune.tuner.specs.read import read_spec

ENOUGH = "it was enough"


def measured(step_s):
    measurement = Measurement(step_times_s=(step_s,), tokens_per_step=8, devices=4)
    return Outcome(verdict=Verdict.OK, measurement=measurement)


OK = measured(1.0)
LOST = Outcome(verdict=Verdict.LOST, reason="node n2 is down")
BASELINE = Plan(tp=4)
PLANNED, SUBMITTED, RUNNING, DONE = TrialState
MINIMAL = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8}
SPEC = replace(read_spec(MINIMAL, None)[0], budget=Budget(trials=4), trial=TrialLimits(time_limit_s=100.0, attempts=2))


def decided(make, trials, *, state=CampaignState.RUNNING, seen=None, now=0.0, elapsed_s=0.0, search_ended="", **over):
    more = {"elapsed_s": elapsed_s, "reason": "because", "search_ended": search_ended}
    campaign = make.campaign(replace(SPEC, **over), state, **more)
    return decide(campaign, trials, seen or {}, now)


def look(state, **more):
    return PolledJob(JobStatus(state=state, **more))


SPENT = "the budget of 4 trials is spent"
NEWS = {
    0: look(JobState.RUNNING, started_at=5.0, nodes=("n1",)),
    1: replace(
        look(JobState.LOST, started_at=4.0, finished_at=9.0, nodes=("n2", "n3"), failed_nodes=("n2",)), outcome=LOST
    ),
}
NO_TIMES = {0: look(JobState.RUNNING), 1: PolledJob(JobStatus(state=JobState.SUCCEEDED), OK)}
NO_NEWS = {0: look(JobState.QUEUED), 1: look(JobState.RUNNING, started_at=1.0)}
# Trials by what they are: a state, an outcome, a verdict, or None for a planned one; the campaign; what is decided.
SITUATIONS = {
    "the baseline comes before anything is asked": ([], {"baseline": BASELINE}, [PlanBaseline()]),
    "without a baseline the search fills the room": ([], {"parallel": 3}, [AskSearch(3)]),
    "the room is what unfinished trials leave": ([OK, RUNNING, SUBMITTED], {"parallel": 3}, [AskSearch(1)]),
    "no room, nothing asked": ([OK, RUNNING, SUBMITTED], {"parallel": 2}, []),
    "no more is asked than the budget has left": ([OK, OK, OK], {"parallel": 4}, [AskSearch(1)]),
    "planned trials are submitted": ([None, None], {"parallel": 2}, [Submit(0), Submit(1)]),
    "a spent budget ends the search": ([OK, OK, OK, RUNNING], {}, [EndSearch(SPENT)]),
    "an ended search does not end again": ([OK, OK, OK, RUNNING], {"search_ended": ENOUGH}, []),
    "what was lost comes before the best are named": ([OK, Verdict.LOST], {"search_ended": ENOUGH}, [Retry(1)]),
    "what was lost comes before anything new": ([Verdict.LOST, None], {"parallel": 3}, [Retry(0)]),
    "news come first and alone": (
        [SUBMITTED, RUNNING, None],
        {"seen": NEWS, "parallel": 3},
        [MarkRunning(0, 5.0, ("n1",)), Finish(1, LOST, 4.0, 9.0, ("n2", "n3"), ("n2",))],
    ),
    "times that the runner does not know are those of the look": (
        [SUBMITTED, SUBMITTED],
        {"seen": NO_TIMES, "now": 9.0, "parallel": 2},
        [MarkRunning(0, 9.0), Finish(1, OK, None, 9.0)],
    ),
    "a running job is marked once and a queued one not at all": (
        [SUBMITTED, RUNNING],
        {"seen": NO_NEWS, "parallel": 2},
        [],
    ),
    "a paused campaign starts nothing": (
        [None, Verdict.LOST, RUNNING],
        {"state": CampaignState.PAUSED, "parallel": 4},
        [],
    ),
    "a paused campaign plans nothing": ([], {"state": CampaignState.PAUSED, "baseline": BASELINE}, []),
}


@pytest.mark.parametrize(("trials", "campaign", "wanted"), SITUATIONS.values(), ids=SITUATIONS)
def test_what_is_decided(make, trials, campaign, wanted):
    built = [
        make.trial(number, state=one) if isinstance(one, TrialState) else make.trial(number, one)
        for number, one in enumerate(trials)
    ]
    assert decided(make, built, **campaign) == wanted


def ended_search(make):
    """Five trials, of which four were measured; from the fastest to the slowest: 2, 0, 4, 1."""
    outcomes = [measured(2.0), measured(9.0), measured(1.0), Outcome(verdict=Verdict.OOM), measured(3.0)]
    return [make.trial(number, outcome) for number, outcome in enumerate(outcomes)]


def confirming(make, trials, plans, *, outcome=None, state=None):
    """The trials that measure these trials' plans again, numbered on."""
    return [
        make.trial(number, outcome, state=state, origin=Origin.CONFIRMATION, plan=trials[plan].plan)
        for number, plan in enumerate(plans, start=len(trials))
    ]


@pytest.mark.parametrize(
    ("parallel", "confirm", "planned"),
    [(1, 3, [2]), (2, 3, [2, 0]), (8, 3, [2, 0, 4]), (8, 2, [2, 0]), (8, 9, [2, 0, 4, 1])],
)
def test_the_best_measured_plans_are_planned_once_more_as_there_is_room(make, parallel, confirm, planned):
    trials = ended_search(make)
    plans = tuple(trials[number].plan for number in planned)
    assert decided(make, trials, search_ended=ENOUGH, parallel=parallel, confirm=confirm) == [Confirm(plans, 1)]


def test_what_is_confirmed_waits_for_its_room(make):
    trials = ended_search(make)
    one = confirming(make, trials, [2], state=RUNNING)
    assert decided(make, trials + one, search_ended=ENOUGH) == []
    assert decided(make, trials + one, search_ended=ENOUGH, parallel=2) == [Confirm((trials[0].plan,), 1)]
    planned = confirming(make, trials, [2])
    assert decided(make, trials + planned, search_ended=ENOUGH) == [Submit(5)]


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([measured(1.1)] * 3, "; 3 second runs of 3 plans in 1 round"),
        (
            [measured(1.1), Outcome(verdict=Verdict.OOM)],
            "; 2 second runs of 2 plans in 1 round, 1 without a measurement",
        ),
        ([], ""),
    ],
)
def test_the_campaign_closes_when_the_best_were_measured_again(make, outcomes, words):
    trials = ended_search(make)
    for plan, outcome in zip([2, 0, 4], outcomes, strict=False):
        trials += confirming(make, trials, [plan], outcome=outcome)
    closed = Close(CampaignState.COMPLETED, f"{ENOUGH}{words}")
    assert decided(make, trials, search_ended=ENOUGH, confirm=len(outcomes), confirm_rounds=1) == [closed]


def test_a_spent_hard_budget_ends_confirmations_too(make):
    trials = ended_search(make)
    over = {"search_ended": ENOUGH, "budget": Budget(wall_time_s=50.0), "elapsed_s": 50.0}
    spent = "the wall-time budget of 50 s is spent"
    assert decided(make, trials + confirming(make, trials, [2], state=RUNNING), **over) == [Cancel(5, spent)]
    assert decided(make, trials, **over) == [Close(CampaignState.COMPLETED, spent)]


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.LOST, Verdict.OK)])
def test_only_what_the_infrastructure_lost_is_tried_again(make, verdict):
    assert decided(make, [make.trial(0, verdict)]) == [AskSearch(1)]
    assert decided(make, [make.trial(0, Verdict.LOST, attempt=2)]) == [AskSearch(1)]  # no attempt is left


def test_a_job_that_outlives_its_limit_is_cancelled_after_some_patience(make):
    trials = [make.trial(0, state=RUNNING, started_at=0.0)]
    # However late the clock on the wall says it is.
    seen = {0: replace(look(JobState.RUNNING, started_at=0.0), running_s=100.0 + OVERTIME_S)}
    assert decided(make, trials, seen=seen, now=10_000.0) == []
    seen = {0: replace(seen[0], running_s=100.1 + OVERTIME_S)}
    late = Cancel(0, "ran longer than its time limit of 100 s")
    assert decided(make, trials, seen=seen, now=1.0) == [late]
    assert decided(make, trials, seen=seen, now=1.0, state=CampaignState.PAUSED) == [late]


@pytest.mark.parametrize("budget", [Budget(wall_time_s=50.0), Budget(device_hours=50 * 4 / 3600)])
def test_a_spent_hard_budget_ends_what_runs_and_starts_nothing(make, budget):
    held = make.trial(0, OK, started_at=0.0, finished_at=50.0)
    trials = [held, make.trial(1), make.trial(2, Verdict.LOST)]
    (cancel,) = decided(make, trials, budget=budget, elapsed_s=50.0)
    assert (cancel.number, "budget" in cancel.reason) == (1, True)
    (close,) = decided(make, [held], budget=budget, elapsed_s=50.0)
    assert (close.state, close.reason) == (CampaignState.COMPLETED, cancel.reason)
    assert decided(make, [held], budget=Budget(wall_time_s=51.0), elapsed_s=50.0) == [AskSearch(1)]


def test_a_cancelled_campaign_cancels_all_that_is_open_and_then_closes_with_its_reason(make):
    trials = [make.trial(0, OK), make.trial(1), make.trial(2, state=RUNNING), make.trial(3, Verdict.LOST)]
    cancelling = CampaignState.CANCELLING
    assert decided(make, trials, state=cancelling) == [Cancel(1, "because"), Cancel(2, "because")]
    closed = [Close(CampaignState.CANCELLED, "because")]
    assert decided(make, [trials[0], trials[3]], state=cancelling) == closed


def test_a_hopeless_campaign_cancels_all_that_is_open_and_then_fails_with_the_log(make):
    bug = Outcome(verdict=Verdict.CRASHED, cause=Cause.USER_BUG, reason="no such file", log_tail="one\ntwo")
    told = "trial 0 failed for a reason that no plan can change: no such file; mend it and start a new campaign"
    trials = [make.trial(0, bug), make.trial(1), make.trial(2, state=RUNNING)]
    assert decided(make, trials, parallel=4) == [Cancel(1, told), Cancel(2, told)]
    assert decided(make, trials[:1]) == [Close(CampaignState.FAILED, f"{told}\none\ntwo")]
    assert decided(make, trials, state=CampaignState.PAUSED) == []


def test_a_share_bounds_what_is_chosen_but_not_what_is_planned_or_measured_again(make):
    trials = [make.trial(0, OK), make.trial(1, state=RUNNING), make.trial(2)]
    campaign = make.campaign(replace(SPEC, parallel=8, budget=Budget(trials=20)))
    for share, asked in ((None, [AskSearch(6)]), (5, [AskSearch(3)]), (99, [AskSearch(6)]), (2, []), (0, [])):
        assert decide(campaign, trials, {}, 0.0, share) == [Submit(2), *asked]
    ended = replace(campaign, search_ended=ENOUGH)
    assert decide(ended, trials[:1], {}, 0.0, 0) == [Confirm((trials[0].plan,), 1)]


def test_no_more_trials_are_planned_than_the_owner_has_left(make):
    campaign = make.campaign(replace(SPEC, parallel=8, baseline=BASELINE, budget=Budget(trials=20)))
    assert decide(campaign, [], {}, 0.0, None, 0) == []
    trials = [make.trial(0, OK, plan=BASELINE), make.trial(1)]
    for left, asked in ((None, [AskSearch(7)]), (3, [AskSearch(3)]), (0, [])):
        assert decide(campaign, trials, {}, 0.0, None, left) == [Submit(1), *asked]
    ended = replace(campaign, search_ended=ENOUGH)
    assert decide(ended, trials[:1], {}, 0.0, None, 0) == []


def waits(reason, waited_s=0.0, **more):
    return {0: replace(look(JobState.QUEUED, reason=reason, **more), waited_s=waited_s)}


def submitted(make, wait=""):
    trial = make.trial(0, state=SUBMITTED)
    return replace(trial, attempts=(replace(trial.last, wait=wait),))


def test_why_a_job_waits_is_noted_when_it_changes_and_keeps_nothing_else_from_being_decided(make):
    trials = [submitted(make), make.trial(1)]
    seen = waits("held by\n\0root")
    assert decided(make, trials, seen=seen, parallel=2) == [NoteWait(0, "held by root"), Submit(1)]
    assert decided(make, [submitted(make, "held by root")], seen=seen) == []
    assert decided(make, [submitted(make, "held by root")], seen=waits("")) == [NoteWait(0, "")]
    (long,) = decided(make, [submitted(make)], seen=waits("x" * 9999), state=CampaignState.PAUSED)
    assert len(long.wait) == MAX_WAIT


QUEUE_LIMIT = {"trial": TrialLimits(time_limit_s=100.0, attempts=2, queue_limit_s=600.0)}
LATE = "waited longer than its queue limit of 600 s: held"
WITHDRAWN = Outcome(verdict=Verdict.CANCELLED, cause=Cause.QUEUE_LIMIT, reason=LATE)


@pytest.mark.parametrize("state", [CampaignState.RUNNING, CampaignState.PAUSED])
def test_a_job_that_waits_longer_than_the_queue_limit_is_withdrawn(make, state):
    trials = [submitted(make, "held")]
    assert decided(make, trials, seen=waits("held", 600.0), now=9999.0, state=state, **QUEUE_LIMIT) == []
    assert decided(make, trials, seen=waits("held", 600.1), state=state, **QUEUE_LIMIT) == [Cancel(0, LATE)]
    assert decided(make, trials, seen=waits("held", 99_999.0), state=state) == []


def test_a_trial_that_nobody_could_claim_while_the_service_was_away_is_not_withdrawn_at_once(make):
    over = {**QUEUE_LIMIT, "runner": Backend(kind=EXTERNAL)}
    seen = waits("held", 601.0)
    assert decided(make, [submitted(make, "held")], seen=seen, **over) == []
    seen = {0: replace(seen[0], listened_s=GRACE_S)}
    assert decided(make, [submitted(make, "held")], seen=seen, **over) == [Cancel(0, LATE)]


def test_a_silent_worker_loses_its_claim_before_its_time_limit_does_and_only_while_somebody_listens(make):
    lease = WorkerLease(worker="w1", seconds=60.0, heard=3, step_times_s=(1.2, 1.22))
    claimed = replace(look(JobState.RUNNING, lease=lease), running_s=100.0, listened_s=GRACE_S, silent_s=61.2)
    trials, over = [make.trial(0, state=RUNNING)], {**QUEUE_LIMIT, "runner": Backend(kind=EXTERNAL)}

    def ends(**changes):
        return decided(make, trials, seen={0: replace(claimed, **changes)}, state=CampaignState.PAUSED, **over)

    words = "worker w1 was silent for 61 s of a lease of 60 s; it had reported 2 steps of 1.21 s"
    assert ends() == [EndClaim(0, Verdict.LOST, words)]
    late = EndClaim(0, Verdict.TIMED_OUT, "its claim told no result within its time limit of 100 s")
    assert ends(silent_s=59.9) == [late]
    assert ends(silent_s=59.9, running_s=99.0) == ends(listened_s=GRACE_S - 1) == []
    assert ends(status=replace(claimed.status, lease=WorkerLease())) == [late], "a claim without a lease"


def test_a_withdrawn_job_is_told_apart_from_one_that_somebody_cancelled(make):
    cancelled = Outcome(verdict=Verdict.CANCELLED, reason="cancelled")
    seen = {0: replace(look(JobState.CANCELLED), outcome=cancelled, waited_s=601.0)}
    early = {0: replace(seen[0], waited_s=550.0)}
    trials = [submitted(make, "held")]
    assert decided(make, trials, seen=seen, now=701.0, **QUEUE_LIMIT) == [Finish(0, WITHDRAWN, None, 701.0)]
    assert decided(make, trials, seen=early, now=701.0, **QUEUE_LIMIT) == [Finish(0, cancelled, None, 701.0)]
    ran = [make.trial(0, state=RUNNING)]
    assert decided(make, ran, seen=seen, now=701.0, **QUEUE_LIMIT) == [Finish(0, cancelled, None, 701.0)]


def test_a_withdrawn_trial_pauses_the_campaign_and_is_tried_again_once_that_is_resumed(make):
    trials = [make.trial(0, WITHDRAWN, finished_at=50.0), make.trial(1)]
    campaign = make.campaign(replace(SPEC, parallel=2, **QUEUE_LIMIT))
    assert decide(campaign, trials, {}, 60.0) == [Pause(f"trial 0 {LATE}")]
    assert decide(replace(campaign, state=CampaignState.PAUSED), trials, {}, 60.0) == []
    assert decide(replace(campaign, running_since=55.0), trials, {}, 60.0) == [Retry(0)]


PREEMPTED = Outcome(verdict=Verdict.LOST, cause=Cause.PREEMPTION, reason="preempted")


@pytest.mark.parametrize(
    ("ends", "again"),
    [
        ([PREEMPTED] * 3, True),
        ([PREEMPTED, LOST, WITHDRAWN, PREEMPTED], True),
        ([LOST, PREEMPTED, LOST], False),
        ([PREEMPTED] * (MAX_ATTEMPTS - 1), True),
        ([PREEMPTED] * MAX_ATTEMPTS, False),
    ],
)
def test_preemptions_and_withdrawals_do_not_count_against_the_attempts_but_are_bounded(make, ends, again):
    trial = make.trial(0, ends[-1])
    attempts = tuple(
        replace(trial.last, number=number, outcome=end, finished_at=-1.0) for number, end in enumerate(ends)
    )
    assert decided(make, [replace(trial, attempts=attempts)]) == ([Retry(0)] if again else [AskSearch(1)])
