"""A service may die between any two acts, before or after each: the next one goes on, loses nothing, doubles nothing.

Every store write and every call of the runner is an act. Whatever a campaign did, at its end each trial is DONE exactly
once, each job was sent exactly once, and the trials are as many as the budget.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tuner.campaign import CampaignState

TRIALS = 4


def script(make, name):
    """Trial 0 is quick, 1 is lost once, 2 runs out of memory, 3 takes longest."""
    number, attempt = int(name.split("-t")[1][:4]), int(name[-1])
    if number == 1 and attempt == 1:
        return make.Behaviour("lost", run_s=0.5)
    return make.Behaviour("oom" if number == 2 else "ok", queue_s=0.3, run_s=0.2 + 0.5 * number)


def create(lab, make):
    lab.machine.script = partial(script, make)
    return lab.create(baseline={"tp": 1}, parallel=2, budget={"trials": TRIALS})


def run_dying_at(lab, make, act, *, after, order=None):
    """Work on the campaign until the process dies at its act-th act, then with a fresh process. True when it died."""
    id = create(lab, make)
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
    assert len({trial.plan for trial in trials}) == len(trials)
    assert all(trial.state.final for trial in trials)
    assert set(lab.machine.sent.values()) <= {1}
    known = {attempt.job_name for trial in trials for attempt in trial.attempts}
    assert set(lab.machine.jobs) <= known
    ends = Counter((e.data["number"], e.data["attempt"]) for e in lab.store.events(id) if e.kind == "trial.done")
    assert set(ends.values()) == {1}
    assert len(ends) == sum(len(trial.attempts) for trial in trials)
    assert all(job.status(lab.now).state.final for job in lab.machine.jobs.values())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_act_loses_nothing_and_doubles_nothing(lab, make, after):
    died, act = True, 0
    while died:
        act += 1
        id, died = run_dying_at(lab, make, act, after=after)
        check_truth(lab, id)
        assert lab.verdicts(id) == ["ok", "ok", "oom", "ok"], f"act {act}"
        assert len(lab.trials(id)[1].attempts) == 2, f"act {act}"
        assert lab.campaign(id).state is CampaignState.COMPLETED
        assert lab.machine.sent.total() == TRIALS + 1, f"act {act}"
        assert lab.machine.most_at_once <= 2
        lab.machine.sent.clear()
        lab.machine.jobs.clear()
    assert act > 40  # it did go through a whole campaign


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_act_of_a_cancelling_leaves_no_job_behind(lab, make, after):
    died, act = True, 0
    while died:
        act += 1
        id, died = run_dying_at(lab, make, act, after=after, order=lambda service, id: service.cancel(id))
        check_truth(lab, id)
        assert lab.campaign(id).state is CampaignState.CANCELLED, f"act {act}"
        lab.machine.sent.clear()
        lab.machine.jobs.clear()
    assert act > 25
