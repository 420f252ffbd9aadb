"""Campaigns that cannot get anywhere stop, and say why; those that might go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.stopping import hopeless_reason, loses_every_job, signature
from meshtune.tuner.campaign.trial import TrialState

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


def test_a_runner_that_never_took_a_job_and_refuses_one_will_take_none(make):
    illegal = Outcome(verdict=Verdict.ILLEGAL, reason="slurm: invalid partition specified: gpuu")
    first = refused(make.trial(0, illegal))
    told = "the runner takes no such jobs: trial 0: slurm: invalid partition specified: gpuu"
    assert hopeless_reason([first]) == f"{told}; mend it and start a new campaign"
    assert hopeless_reason([first, make.trial(1)]) == hopeless_reason([first])
    assert hopeless_reason([make.trial(0, Verdict.OOM), refused(make.trial(1, illegal))]) == ""
    # It was sent: the job itself said so.
    assert hopeless_reason([make.trial(0, illegal)]) == ""


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


def test_a_bug_of_the_user_ends_the_campaign_and_what_runs_beside_it(lab, make):
    lab.machine.script = lambda name: make.Behaviour("bug") if "t0000" in name else make.Behaviour(run_s=1e6)
    id = lab.create(parallel=3, budget={"trials": 9})
    lab.run(id)
    assert lab.verdicts(id) == ["crashed", "cancelled", "cancelled"]
    ended = lab.campaign(id)
    assert ended.state is CampaignState.FAILED
    assert ended.reason.splitlines()[0].startswith(f"trial 0 failed for a reason that no plan can change: {BUG}")
    assert ended.reason.splitlines()[1:] == ["starting", BUG]
    assert len(lab.machine.cancels) == 2
    assert lab.trials(id)[0].outcome.failure is Cause.USER_BUG
    assert all("\n" not in trial.outcome.reason for trial in lab.trials(id))


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
