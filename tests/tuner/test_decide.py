"""decide(), as tables of situations and as a simulation of whole campaigns that go wrong in every way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.decide import (
    OVERTIME_S,
    Ask,
    Cancel,
    Close,
    Confirm,
    EndSearch,
    Finish,
    MarkRunning,
    Observation,
    Pause,
    PlanBaseline,
    Retry,
    Submit,
    decide,
    device_seconds,
)
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.spec import Backend, Budget, CampaignSpec, TrialLimits
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial, TrialState, job_name

ENOUGH = "it was enough"


def measured(step_s):
    measurement = Measurement(step_times_s=(step_s,), tokens_per_step=8, devices=4)
    return Outcome(verdict=Verdict.OK, measurement=measurement)


OK = measured(1.0)
BASELINE = Plan(tp=4)
PLANNED, SUBMITTED, RUNNING, DONE = TrialState
DEVICE = DeviceSpec(name="d", kind=DeviceKind.CPU, memory_bytes=1)
MODEL = ModelSpec(name="m", layers=2, hidden=8, heads=2, ffn=8, vocab=8, seq_len=8)


def make_spec(**over: Any) -> CampaignSpec:
    given = {
        "name": "c",
        "model": MODEL,
        "cluster": ClusterSpec(name="c", nodes=1, devices_per_node=4, device=DEVICE),
        "workload": Backend(kind="fake"),
        "global_batch_size": 8,
        "space": Bounds(),
        "baseline": None,
        "objective": Objective.TOKENS_PER_S_PER_DEVICE,
        "search": Backend(kind="fake"),
        "runner": Backend(kind="fake"),
        "budget": Budget(trials=4),
        "trial": TrialLimits(time_limit_s=100.0, attempts=2),
    }
    return CampaignSpec(**{**given, **over})


def decided(make, trials, *, state=CampaignState.RUNNING, seen=None, now=0.0, elapsed_s=0.0, search_ended="", **over):
    more = {"elapsed_s": elapsed_s, "reason": "because", "search_ended": search_ended}
    campaign = make.campaign(make_spec(**over), state, **more)
    return decide(campaign, trials, seen or {}, now)


def look(state, **more):
    return Observation(JobStatus(state=state, **more))


# One situation after the other


def test_the_baseline_is_planned_before_anything_is_asked(make):
    assert decided(make, [], baseline=BASELINE) == [PlanBaseline()]


def test_without_a_baseline_the_search_fills_the_room(make):
    assert decided(make, [], parallel=3) == [Ask(3)]


def test_the_room_is_what_unfinished_trials_leave(make):
    trials = [make.trial(0, OK), make.trial(1, state=RUNNING), make.trial(2, state=SUBMITTED)]
    assert decided(make, trials, parallel=3) == [Ask(1)]
    assert decided(make, trials, parallel=2) == []


def test_no_more_is_asked_for_than_the_budget_has_left(make):
    assert decided(make, [make.trial(0, OK), make.trial(1, OK), make.trial(2, OK)], parallel=4) == [Ask(1)]


def test_planned_trials_are_submitted(make):
    trials = [make.trial(0), make.trial(1)]
    assert decided(make, trials, parallel=2) == [Submit(0), Submit(1)]


def test_the_search_ends_when_the_budget_is_spent_whatever_still_runs(make):
    trials = [*(make.trial(number, OK) for number in range(3)), make.trial(3, state=RUNNING)]
    assert decided(make, trials) == [EndSearch("the budget of 4 trials is spent")]
    assert decided(make, trials, search_ended=ENOUGH) == []


def test_what_was_lost_is_tried_again_before_the_best_are_named(make):
    trials = [make.trial(0, OK), make.trial(1, Verdict.LOST)]
    assert decided(make, trials, search_ended=ENOUGH) == [Retry(1)]


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
    assert decided(make, trials, search_ended=ENOUGH, parallel=parallel, confirm=confirm) == [Confirm(plans)]


def test_what_is_confirmed_waits_for_its_room(make):
    trials = ended_search(make)
    one = confirming(make, trials, [2], state=RUNNING)
    assert decided(make, trials + one, search_ended=ENOUGH) == []
    assert decided(make, trials + one, search_ended=ENOUGH, parallel=2) == [Confirm((trials[0].plan,))]
    planned = confirming(make, trials, [2])
    assert decided(make, trials + planned, search_ended=ENOUGH) == [Submit(5)]


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([measured(1.1)] * 3, "; the best 3 were measured again"),
        ([measured(1.1)], "; the best one was measured again"),
        ([measured(1.1), Outcome(verdict=Verdict.OOM)], "; of the best 2, 1 could be measured again"),
        ([], ""),
    ],
)
def test_the_campaign_closes_when_the_best_were_measured_again(make, outcomes, words):
    trials = ended_search(make)
    for plan, outcome in zip([2, 0, 4], outcomes, strict=False):
        trials += confirming(make, trials, [plan], outcome=outcome)
    closed = Close(CampaignState.COMPLETED, f"{ENOUGH}{words}")
    assert decided(make, trials, search_ended=ENOUGH, confirm=len(outcomes)) == [closed]


def test_a_spent_hard_budget_ends_confirmations_too(make):
    trials = ended_search(make)
    over = {"search_ended": ENOUGH, "budget": Budget(wall_time_s=50.0), "elapsed_s": 50.0}
    spent = "the wall-time budget of 50 s is spent"
    assert decided(make, trials + confirming(make, trials, [2], state=RUNNING), **over) == [Cancel(5, spent)]
    assert decided(make, trials, **over) == [Close(CampaignState.COMPLETED, spent)]


def test_news_of_jobs_come_first_and_alone(make):
    trials = [make.trial(0, state=SUBMITTED), make.trial(1, state=RUNNING, started_at=5.0), make.trial(2)]
    ended = Observation(JobStatus(state=JobState.SUCCEEDED, started_at=5.0, finished_at=7.0), OK)
    seen = {0: look(JobState.RUNNING, started_at=6.0), 1: ended}
    assert decided(make, trials, seen=seen, parallel=3) == [MarkRunning(0, 6.0), Finish(1, OK, 5.0, 7.0)]


def test_a_job_whose_runner_knows_no_times_gets_those_of_the_look(make):
    trials = [make.trial(0, state=SUBMITTED), make.trial(1, state=SUBMITTED)]
    seen = {0: look(JobState.RUNNING), 1: Observation(JobStatus(state=JobState.SUCCEEDED), OK)}
    assert decided(make, trials, seen=seen, now=9.0, parallel=2) == [MarkRunning(0, 9.0), Finish(1, OK, None, 9.0)]


def test_a_running_job_is_marked_once_and_a_queued_one_not_at_all(make):
    trials = [make.trial(0, state=RUNNING, started_at=1.0), make.trial(1, state=SUBMITTED)]
    seen = {0: look(JobState.RUNNING, started_at=1.0), 1: look(JobState.QUEUED)}
    assert decided(make, trials, seen=seen, parallel=2) == []


def test_what_was_lost_is_tried_again_before_anything_new(make):
    trials = [make.trial(0, Verdict.LOST), make.trial(1)]
    assert decided(make, trials, parallel=3) == [Retry(0)]


def test_what_was_lost_often_enough_is_not_tried_again(make):
    assert decided(make, [make.trial(0, Verdict.LOST, attempt=2)]) == [Ask(1)]


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.LOST, Verdict.OK)])
def test_only_what_the_infrastructure_lost_is_tried_again(make, verdict):
    assert decided(make, [make.trial(0, verdict)]) == [Ask(1)]


def test_a_job_that_outlives_its_limit_is_cancelled_after_some_patience(make):
    trials = [make.trial(0, state=RUNNING, started_at=0.0)]
    seen = {0: look(JobState.RUNNING, started_at=0.0)}
    assert decided(make, trials, seen=seen, now=100.0 + OVERTIME_S) == []
    late = Cancel(0, "ran longer than its time limit of 100 s")
    assert decided(make, trials, seen=seen, now=100.1 + OVERTIME_S) == [late]
    assert decided(make, trials, seen=seen, now=100.1 + OVERTIME_S, state=CampaignState.PAUSED) == [late]


def test_a_paused_campaign_starts_nothing(make):
    trials = [make.trial(0), make.trial(1, Verdict.LOST), make.trial(2, state=RUNNING, started_at=0.0)]
    assert decided(make, trials, state=CampaignState.PAUSED, parallel=4) == []
    assert decided(make, [], state=CampaignState.PAUSED, baseline=BASELINE) == []


@pytest.mark.parametrize("budget", [Budget(wall_time_s=50.0), Budget(device_hours=50 * 4 / 3600)])
def test_a_spent_hard_budget_ends_what_runs_and_starts_nothing(make, budget):
    held = make.trial(0, OK, started_at=0.0, finished_at=50.0)
    trials = [held, make.trial(1), make.trial(2, Verdict.LOST)]
    (cancel,) = decided(make, trials, budget=budget, elapsed_s=50.0)
    assert (cancel.number, "budget" in cancel.reason) == (1, True)
    (close,) = decided(make, [held], budget=budget, elapsed_s=50.0)
    assert (close.state, close.reason) == (CampaignState.COMPLETED, cancel.reason)
    assert decided(make, [replace(held, attempts=held.attempts)], budget=Budget(wall_time_s=51.0), elapsed_s=50.0) == [
        Ask(1)
    ]


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
    campaign = make.campaign(make_spec(parallel=8, budget=Budget(trials=20)))
    for share, asked in ((None, [Ask(6)]), (5, [Ask(3)]), (99, [Ask(6)]), (2, []), (0, [])):
        assert decide(campaign, trials, {}, 0.0, share) == [Submit(2), *asked]
    ended = replace(campaign, search_ended=ENOUGH)
    assert decide(ended, trials[:1], {}, 0.0, 0) == [Confirm((trials[0].plan,))]


def test_no_more_trials_are_planned_than_the_owner_has_left(make):
    campaign = make.campaign(make_spec(parallel=8, baseline=BASELINE, budget=Budget(trials=20)))
    assert decide(campaign, [], {}, 0.0, None, 0) == []
    trials = [make.trial(0, OK, plan=BASELINE), make.trial(1)]
    for left, asked in ((None, [Ask(7)]), (3, [Ask(3)]), (0, [])):
        assert decide(campaign, trials, {}, 0.0, None, left) == [Submit(1), *asked]
    ended = replace(campaign, search_ended=ENOUGH)
    assert decide(ended, trials[:1], {}, 0.0, None, 0) == []


def test_where_a_job_ran_and_what_failed_under_it_is_part_of_its_end(make):
    trials = [make.trial(0, state=SUBMITTED), make.trial(1, state=RUNNING)]
    lost = Outcome(verdict=Verdict.LOST, reason="node n2 is down")
    seen = {
        0: look(JobState.RUNNING, started_at=5.0, nodes=("n1",)),
        1: replace(look(JobState.LOST, finished_at=9.0, nodes=("n2", "n3"), failed_nodes=("n2",)), outcome=lost),
    }
    assert decided(make, trials, seen=seen) == [
        MarkRunning(0, 5.0, ("n1",)),
        Finish(1, lost, None, 9.0, ("n2", "n3"), ("n2",)),
    ]


# The simulation


class World(RuleBasedStateMachine):
    """A store, a runner and a search as decide() sees them, with the store's own rules checked at every move."""

    @initialize(
        parallel=st.integers(1, 4),
        attempts=st.integers(1, 3),
        trials=st.one_of(st.none(), st.integers(1, 6)),
        wall=st.one_of(st.none(), st.floats(1.0, 500.0)),
        hours=st.one_of(st.none(), st.floats(0.01, 0.5)),
        baseline=st.booleans(),
        plans=st.integers(0, 12),
        confirm=st.integers(0, 4),
        enough=st.one_of(st.none(), st.integers(1, 5)),
    )
    def begin(self, parallel, attempts, trials, wall, hours, baseline, plans, confirm, enough):
        if trials is wall is hours is None:
            trials = 3
        spec = make_spec(
            parallel=parallel,
            trial=TrialLimits(time_limit_s=100.0, attempts=attempts),
            budget=Budget(trials=trials, wall_time_s=wall, device_hours=hours),
            baseline=BASELINE if baseline else None,
            confirm=confirm,
        )
        self.enough = enough
        self.campaign = Campaign(
            id="c", spec=spec, state=CampaignState.RUNNING, created_at=0, updated_at=0, combinations=99, legal=plans
        )
        self.plans_left = plans
        self.trials: list[Trial] = []
        self.jobs: dict[str, JobStatus] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.cancelled: set[str] = set()
        self.now = 0.0

    # What happens outside

    @rule(seconds=st.floats(0.0, 200.0))
    def time_passes(self, seconds):
        self.now += seconds
        if self.campaign.state is CampaignState.RUNNING:
            self.campaign = replace(self.campaign, elapsed_s=self.campaign.elapsed_s + seconds)

    @rule(data=st.data(), known=st.booleans())
    def a_job_starts(self, data, known):
        waiting = [name for name, status in self.jobs.items() if status.state is JobState.QUEUED]
        if waiting:
            name = data.draw(st.sampled_from(waiting))
            self.jobs[name] = JobStatus(state=JobState.RUNNING, started_at=self.now if known else None)

    @rule(data=st.data(), verdict=st.sampled_from([v for v in Verdict if v is not Verdict.PRUNED]))
    def a_job_ends(self, data, verdict):
        alive = [name for name, status in self.jobs.items() if not status.state.final]
        if alive:
            self.end_job(data.draw(st.sampled_from(alive)), verdict)

    def end_job(self, name, verdict):
        lost = verdict is Verdict.LOST
        state = JobState.LOST if lost else JobState.SUCCEEDED if verdict is Verdict.OK else JobState.FAILED
        self.jobs[name] = replace(self.jobs[name], state=state, finished_at=self.now)
        self.outcomes[name] = OK if verdict is Verdict.OK else Outcome(verdict=verdict, reason="it broke")

    @rule(to=st.sampled_from([CampaignState.PAUSED, CampaignState.RUNNING, CampaignState.CANCELLING]))
    def somebody_orders(self, to):
        if self.campaign.state.may_become(to):
            self.order(to)

    def order(self, to):
        since = self.now if to is CampaignState.RUNNING else self.campaign.running_since
        self.campaign = replace(self.campaign, state=to, running_since=since)

    @precondition(lambda self: self.campaign.state.active)
    @rule(silent=st.booleans(), survives=st.integers(0, 6))
    def tick(self, silent, survives):
        """One tick; the process dies after so many intents, and what was lost of them is decided again."""
        intents = self.decide(silent)
        for intent in intents[:survives]:
            self.act(intent)
        if survives == 0 and intents:
            assert self.decide(silent) == intents

    def decide(self, silent=False):
        open_jobs = {t.number: t.last.job_name for t in self.trials if t.state in (SUBMITTED, RUNNING)}
        seen = {n: Observation(self.jobs[job], self.outcomes.get(job)) for n, job in open_jobs.items()}
        spent = self.spent()
        intents = decide(self.campaign, self.trials, {} if silent else seen, self.now)
        if spent or self.campaign.state is not CampaignState.RUNNING:
            starts = PlanBaseline | Ask | EndSearch | Confirm | Submit | Retry
            assert not any(isinstance(intent, starts) for intent in intents)
        return intents

    def spent(self):
        budget = self.campaign.spec.budget
        used = device_seconds(self.campaign, self.trials, self.now) / 3600
        return (budget.wall_time_s is not None and self.campaign.elapsed_s >= budget.wall_time_s) or (
            budget.device_hours is not None and used >= budget.device_hours
        )

    def act(self, intent):
        match intent:
            case PlanBaseline():
                assert not self.trials
                self.plan(Origin.BASELINE)
            case Ask(n):
                assert n >= 1
                assert not self.campaign.search_ended
                if len(self.trials) == self.enough:
                    self.end_search(ENOUGH)
                    return
                for _ in range(min(n, self.plans_left)):
                    self.plans_left -= 1
                    self.plan(Origin.SEARCH)
                if self.plans_left == 0 and all(trial.state.final for trial in self.trials):
                    self.end_search("nothing is left")
            case EndSearch(reason):
                self.end_search(reason)
            case Confirm(plans):
                assert self.campaign.search_ended
                assert all(trial.state.final for trial in self.chosen())
                for plan in plans:
                    self.plan(Origin.CONFIRMATION, plan)
            case Submit(number):
                assert self.trials[number].state is PLANNED
                self.jobs.setdefault(self.trials[number].last.job_name, JobStatus(state=JobState.QUEUED))
                self.move(number, SUBMITTED, job_id=self.trials[number].last.job_name)
            case MarkRunning(number, started_at):
                self.move(number, RUNNING, started_at=started_at)
            case Finish(number, outcome, started_at, finished_at):
                more = {} if started_at is None else {"started_at": started_at}
                self.move(number, DONE, outcome=outcome, finished_at=finished_at, **more)
            case Retry(number):
                trial = self.trials[number]
                assert trial.verdict.retryable
                self.trials[number] = replace(
                    trial, attempts=(*trial.attempts, self.attempt(number, trial.last.number + 1))
                )
            case Cancel(number, reason):
                assert reason
                name = self.trials[number].last.job_name
                if name not in self.jobs:
                    self.move(number, DONE, outcome=Outcome(verdict=Verdict.CANCELLED), finished_at=self.now)
                else:
                    self.cancelled.add(name)
            case Pause(reason):
                assert "loses every job" in reason
                self.order(CampaignState.PAUSED)
            case Close(state, reason):
                assert reason
                if state is CampaignState.COMPLETED and not self.spent():
                    measured = sum(trial.measurement is not None for trial in self.chosen())
                    again = [trial for trial in self.trials if trial.origin is Origin.CONFIRMATION]
                    assert len(again) == min(self.campaign.spec.confirm, measured)
                self.close(state)

    def end_search(self, reason):
        assert reason
        self.campaign = replace(self.campaign, search_ended=self.campaign.search_ended or reason)

    def chosen(self):
        """The trials that are no confirmations."""
        return [trial for trial in self.trials if trial.origin is not Origin.CONFIRMATION]

    def attempt(self, number, attempt):
        return Attempt(number=attempt, job_name=job_name("c", number, attempt), state=PLANNED, planned_at=self.now)

    def plan(self, origin, plan=None):
        number = len(self.trials)
        attempts = (self.attempt(number, 1),)
        plan = plan or Plan(dp=number + 1)
        self.trials.append(Trial(campaign_id="c", number=number, plan=plan, origin=origin, attempts=attempts))

    def move(self, number, state, **more):
        trial = self.trials[number]
        assert trial.state.may_become(state), f"{trial.state} cannot become {state}"
        last = replace(trial.last, state=state, **more)
        self.trials[number] = replace(trial, attempts=(*trial.attempts[:-1], last))

    def close(self, state):
        assert self.campaign.state.may_become(state)
        assert all(trial.state.final for trial in self.trials)
        self.campaign = replace(self.campaign, state=state)

    # What must hold always

    @invariant()
    def never_more_than_parallel_at_once(self):
        assert sum(not trial.state.final for trial in self.trials) <= self.campaign.spec.parallel

    @invariant()
    def never_more_trials_or_attempts_than_allowed(self):
        assert len(self.chosen()) <= (self.campaign.spec.budget.trials or 10**9)
        assert all(len(trial.attempts) <= self.campaign.spec.trial.attempts for trial in self.trials)
        assert all(attempt.outcome.verdict is Verdict.LOST for trial in self.trials for attempt in trial.attempts[:-1])

    @invariant()
    def the_baseline_is_the_first_or_nothing(self):
        wanted = self.campaign.spec.baseline is not None
        assert [trial.origin is Origin.BASELINE for trial in self.trials[:1]] == [wanted] * len(self.trials[:1])
        assert not any(trial.origin is Origin.BASELINE for trial in self.trials[1:])

    @invariant()
    def each_of_the_measured_plans_is_confirmed_at_most_once(self):
        again = [trial.plan for trial in self.trials if trial.origin is Origin.CONFIRMATION]
        assert len(again) == len(set(again)) <= self.campaign.spec.confirm
        assert set(again) <= {trial.plan for trial in self.chosen() if trial.measurement is not None}

    @invariant()
    def nothing_is_open_when_the_campaign_is_over(self):
        if self.campaign.state.final:
            assert all(trial.state.final for trial in self.trials)
            known = {trial.last.job_name for trial in self.trials}
            assert all(self.jobs[name].state.final for name in self.jobs if name in known)

    def teardown(self):
        """When jobs end and nobody orders anything any more, the campaign ends too, in few ticks."""
        if not hasattr(self, "campaign"):
            return
        for _ in range(300):
            if self.campaign.state.final:
                break
            if self.campaign.state is CampaignState.PAUSED:
                self.order(CampaignState.RUNNING)
            for intent in self.decide():
                self.act(intent)
            self.time_passes(1.0)
            for name, status in self.jobs.items():
                if not status.state.final:
                    self.end_job(name, Verdict.CANCELLED if name in self.cancelled else Verdict.LOST)
        assert self.campaign.state.final
        self.nothing_is_open_when_the_campaign_is_over()
        self.never_more_trials_or_attempts_than_allowed()


World.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_campaigns_that_go_wrong_in_every_way = World.TestCase
