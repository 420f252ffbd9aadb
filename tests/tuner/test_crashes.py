"""A service may die between any two acts, before or after each: the next one goes on, loses nothing, doubles nothing.

Every store write and every call of the runner is an act. Whatever a campaign did, at its end each trial is DONE exactly
once, each job was sent exactly once, the trials are as many as the budget, and the best were confirmed once in each
round.
A plain test run dies at some acts of every kind, `make test-long` between any two.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest

from meshtune.runners.base import RunnerUnavailable, SubmitFailed
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.second_runs import planned_runs
from meshtune.tuner.campaign.trial import Choice, Origin, Proposal
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import IllegalMove

pytestmark = pytest.mark.slow

TRIALS = 4
# The best two, in two rounds: there is no baseline.
BEST, CONFIRMED = 2, 4
# After one act is before the next, but for files: every second act, once before and once after it, leaves no gap. A
# prime number of acts is no multiple of those of a trial, and so falls on other ones in each.
BEFORE_AND_AFTER = [pytest.param(7, id="some"), pytest.param(2, id="all", marks=pytest.mark.long)]
CANCELLING = [pytest.param(3, id="some"), BEFORE_AND_AFTER[1]]
AFTER = [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]
SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 200))]


def script(make, name):
    """Trial 0 is quick, 1 is lost once, 2 runs out of memory, 3 takes longest; the last confirmation is lost once."""
    number, attempt = int(name.split("-t")[1][:4]), int(name[-1])
    if number in (1, TRIALS + CONFIRMED - 1) and attempt == 1:
        return make.Behaviour("lost", run_s=0.5)
    return make.Behaviour("oom" if number == 2 else "ok", queue_s=0.3, run_s=0.2 + 0.5 * number)


def create(lab, make, trials):
    lab.machine.script = partial(script, make)
    # Hundreds of campaigns in one lab would learn from each other; test_warm_start.py crashes there.
    limits = {"budget": {"trials": trials}, "confirm": BEST, "warm_start": False}
    return lab.create(baseline=None, parallel=2, **limits)


def enough(space, seen, n):
    """A search that says every time how much is left: after TRIALS plans, three of them measured, too little."""
    tried = {one.plan for one in seen}
    fresh = [plan for plan in space if plan not in tried][: min(n, TRIALS - len(seen))]
    measured = sum(one.score is not None for one in seen)
    return Proposal(tuple(Choice(plan) for plan in fresh), 0.5 if measured < 3 else 0.01)


def run_dying_at(lab, make, act, *, after, order=None, trials=TRIALS):
    """Work on the campaign until the process dies at its act-th act, then with a fresh process. True when it died."""
    id = create(lab, make, trials)
    counter = [0]
    lab.wrap = partial(make.Mortal, counter=counter, dies_at=act, after=after)
    lab.open()
    try:
        if order is not None:
            lab.run(id, until=lambda: len(lab.trials(id)) == 3)
            order(lab.service, id)
        lab.run(id)
    except make.Killed:
        lab.kill()
        lab.wrap = lambda thing: thing
        lab.open()
        if order is not None and lab.campaign(id).state is CampaignState.RUNNING:
            lab.run(id, until=lambda: len(lab.trials(id)) == 3 or lab.campaign(id).state.final)
            order(lab.service, id)
        lab.run(id)
    return id, counter[0] >= act


def check_truth(lab, id):
    """What must hold at the end of any campaign."""
    trials = lab.trials(id)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    for again in (False, True):
        plans = [(trial.plan, trial.round) for trial in trials if (trial.origin is Origin.CONFIRMATION) is again]
        assert len(set(plans)) == len(plans)
    assert all(trial.state.final for trial in trials)
    assert set(lab.machine.sent.values()) <= {1}
    known = {attempt.job_name for trial in trials for attempt in trial.attempts}
    assert set(lab.machine.jobs) <= known
    ends = Counter((e.data["number"], e.data["attempt"]) for e in lab.store.events(id) if e.kind == "trial.done")
    assert set(ends.values()) <= {1}
    assert len(ends) == sum(len(trial.attempts) for trial in trials)
    assert all(job.status(lab.now).state.final for job in lab.machine.jobs.values())


def check_end(lab, id, reason, what):
    """What must hold at the end of a campaign that nobody cancelled."""
    trials = lab.trials(id)
    assert lab.verdicts(id) == ["ok", "ok", "oom", *["ok"] * 5], what
    assert [len(trial.attempts) for trial in trials] == [1, 2, 1, 1, 1, 1, 1, 2], what
    assert [trial.origin for trial in trials[TRIALS:]] == [Origin.CONFIRMATION] * CONFIRMED
    assert lab.campaign(id).state is CampaignState.COMPLETED
    assert lab.campaign(id).search_ended == reason
    assert lab.campaign(id).reason == f"{reason}; 4 second runs of 2 plans in 2 rounds"
    ended = [event.data["reason"] for event in lab.store.events(id) if event.kind == "search.ended"]
    assert ended == [reason], what
    assert lab.machine.sent.total() == TRIALS + CONFIRMED + 2, what


def every_death(lab, make, every, *, acts, **how):
    """Campaigns that die at every so many-th act, with the act; a whole campaign has more than `acts`."""
    died, act = True, 0
    while died:
        act += every
        id, died = run_dying_at(lab, make, act, **how)
        check_truth(lab, id)
        yield id, f"act {act}"
        lab.machine.sent.clear()
        lab.machine.jobs.clear()
    assert act > acts


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("every", BEFORE_AND_AFTER)
def test_a_death_at_any_act_loses_nothing_and_doubles_nothing(lab, make, every, after):
    for id, act in every_death(lab, make, every, acts=60, after=after):
        check_end(lab, id, "the budget of 4 trials is spent", act)
        assert lab.machine.most_at_once <= 2


@pytest.mark.parametrize("every", AFTER)
def test_a_death_after_any_act_of_a_search_that_finds_enough_changes_nothing_of_its_end(lab, make, every):
    lab.search.say = enough
    reason = "the probability that any of the 6 untried plans beats the best by more than 2 % is 1 %"
    for id, act in every_death(lab, make, every, acts=60, after=True, trials=9):
        check_end(lab, id, reason, act)
        assert lab.campaign(id).chance_left == 0.01


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("every", CANCELLING)
def test_a_death_at_any_act_of_a_cancelling_leaves_no_job_behind(lab, make, every, after):
    for id, act in every_death(lab, make, every, acts=25, after=after, order=Service.cancel):
        assert lab.campaign(id).state is CampaignState.CANCELLED, act


@pytest.mark.parametrize("seed", SEEDS)
def test_campaigns_that_go_wrong_in_every_way_end_and_keep_their_limits(lab, make, seed):
    """Jobs end in every way, the runner is silent, services die, people give orders, all at random moments."""
    rng = random.Random(seed)
    kinds = ["ok", "ok", "oom", "crashed", "lost", "timed_out"]
    lab.machine.script = lambda name: make.Behaviour(rng.choice(kinds), queue_s=rng.random(), run_s=rng.uniform(0.1, 9))
    most, parallel, confirm, attempts = (rng.randint(1, 6), rng.randint(1, 4), rng.randint(0, 3), rng.randint(1, 3))
    budget = {"trials": most, **rng.choice([{}, {"wall_time_s": 20.0}, {"device_hours": 0.02}])}
    id = lab.create(
        budget=budget,
        parallel=parallel,
        confirm=confirm,
        trial={"attempts": attempts, "time_limit_s": 100.0},
        **rng.choice([{}, {"baseline": {"tp": 1}}]),
    )
    for turn in range(1000):
        campaign, trials = lab.campaign(id), lab.trials(id)
        assert sum(not trial.state.final for trial in trials) <= parallel
        if campaign.state.final:
            break
        event = rng.random() if turn < 200 else 1.0
        if event < 0.05:
            lab.machine.troubles.extend([rng.choice([RunnerUnavailable("no answer"), SubmitFailed("disk full")])] * 2)
        elif event < 0.1:
            lab.kill()
            lab.open()
        elif event < 0.13 or campaign.state is CampaignState.PAUSED:
            order = Service.resume if event == 1.0 else rng.choice([Service.pause, Service.resume, Service.cancel])
            with suppress(IllegalMove):
                order(lab.service, id)
        try:
            acted = lab.service.tick(id)
        except (RunnerUnavailable, SubmitFailed):
            acted = False
        lab.now += 0.0 if acted else rng.uniform(0.0, 2.0)
    assert lab.campaign(id).state.final
    check_truth(lab, id)
    again = [trial.plan for trial in trials if trial.origin is Origin.CONFIRMATION]
    chosen = [trial for trial in trials if trial.origin is not Origin.CONFIRMATION]
    assert len(chosen) <= most
    assert len(again) <= planned_runs(campaign.spec, campaign.legal)[1][1]
    assert set(again) <= {trial.plan for trial in chosen if trial.measurement is not None}
    for trial in trials:
        verdicts = [attempt.outcome.verdict for attempt in trial.attempts[:-1]]
        if trial.origin is Origin.BASELINE:  # somebody resumed the campaign that its late baseline had paused
            verdicts = [verdict for verdict in verdicts if verdict is not Verdict.TIMED_OUT]
        assert len(verdicts) < attempts
        assert set(verdicts) <= {Verdict.LOST}
    wanted = campaign.spec.baseline is not None
    assert [trial.origin is Origin.BASELINE for trial in trials] == [wanted, *[False] * len(trials[1:])][: len(trials)]
