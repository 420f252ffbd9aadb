"""Whole campaigns on the fake runner: measurements, ends, restarts, confirmations, racing, deletion."""

from __future__ import annotations

import json
import re

import pytest

from meshtune.runners.base import Cause, InvalidJob
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.schedulers.batch.shared_look import SharedLook, SharedRunner
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Choice, Expectation, Origin, Proposal, TrialState
from meshtune.tuner.campaign.waiting import wait_text
from meshtune.tuner.service.trouble import Trouble, TroubleKind
from meshtune.tuner.store import IllegalMove, NotFound, StoreUnavailable


def untried(space, seen, n):
    tried = {one.plan for one in seen}
    return [plan for plan in space if plan not in tried][:n]


def proposal(space, seen, n, chance=None, expectation=None):
    return Proposal(tuple(Choice(plan, expectation) for plan in untried(space, seen, n)), chance)


def test_what_a_job_measured_is_what_is_stored(lab):
    id = lab.create(budget={"trials": 1})
    lab.run(id)
    (trial,) = lab.trials(id)
    assert trial.measurement.step_times_s[0] == lab.machine.step_s(trial.plan)
    assert (trial.last.started_at, trial.last.finished_at) == (1000.0, 1001.0)
    assert lab.service.sessions.get(id) is None
    assert not lab.service.sessions.holder.holds


REFUSED = "{} needs 4 processes, but there are 3"


def test_a_job_that_is_refused_after_others_were_taken_waits_until_the_cluster_takes_it(lab, make, monkeypatch):
    id = lab.create(budget={"trials": 2})
    lab.run(id, until=lambda: lab.trials(id) and lab.trials(id)[0].state.final)
    lab.machine.largest = 3
    submit, tries = make.FakeRunner.submit, []
    monkeypatch.setattr(make.FakeRunner, "submit", lambda runner, job: tries.append(job) or submit(runner, job))
    for _ in range(100):
        if not lab.service.tick(id):
            lab.now += 1.0
    waiting = lab.trials(id)[1]
    told = f"the runner refuses jobs: {REFUSED.format(waiting.last.job_name)}; tried again"
    assert (waiting.state, waiting.last.wait) == (TrialState.PLANNED, told)
    assert lab.service.waits(id) == Trouble(told, TroubleKind.REFUSED)
    assert wait_text(waiting.last) == told
    assert [event.kind for event in lab.store.events(id)].count("trial.waits") == 1
    # After 1, 2, 4, 8, 16 s, and every 30 s from then on.
    assert len(tries) in range(6, 10)
    lab.machine.largest = 4
    lab.run(id)
    assert lab.verdicts(id) == ["ok", "ok"]
    assert lab.campaign(id).state is CampaignState.COMPLETED
    assert [len(trial.attempts) for trial in lab.trials(id)] == [1, 1]


def test_a_refused_campaign_collects_what_runs_and_obeys_an_order_to_cancel(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=5.0)
    id = lab.create(budget={"trials": 4}, parallel=2)
    lab.run(id, until=lambda: len(lab.machine.jobs) == 2)
    lab.machine.largest = 3
    lab.run(id, until=lambda: lab.service.waits(id) and lab.verdicts(id)[:2] == ["ok", "ok"])
    lab.service.cancel(id)
    lab.run(id, ticks=5)
    assert lab.campaign(id).state is CampaignState.CANCELLED


def test_a_campaign_whose_first_job_is_refused_goes_on_where_it_is_taken_within_some_tries(lab):
    lab.machine.largest = 3
    id = lab.create(budget={"trials": 1})
    lab.run(id, until=lambda: lab.now > 1010.0)
    assert lab.trials(id)[0].last.wait.startswith("the runner refuses jobs: ")
    lab.machine.largest = 4
    lab.run(id)
    assert lab.verdicts(id) == ["ok"]


@pytest.mark.parametrize("taken", [0, 1])
def test_a_trial_that_is_refused_for_longer_than_its_queue_limit_pauses_the_campaign(taken, lab):
    limit_s = 100.0 if taken else 10.0
    id = lab.create(budget={"trials": 2}, trial={"queue_limit_s": limit_s})
    lab.run(id, until=lambda: lab.verdicts(id)[:taken] == ["ok"] * taken)
    lab.machine.largest = 3
    lab.run(id, until=lambda: lab.campaign(id).state is CampaignState.PAUSED)
    told = rf"trial {taken} waited longer than its queue limit of {limit_s:g} s: the runner refuses jobs: .*resume it"
    assert re.match(told, lab.campaign(id).reason)
    assert [trial.outcome.cause for trial in lab.trials(id)[taken:]] == [Cause.QUEUE_LIMIT]
    lab.machine.largest = 4
    lab.service.resume(id)
    lab.run(id)
    assert lab.verdicts(id) == ["ok", "ok"]


def test_a_campaign_of_which_no_job_was_ever_taken_fails_with_the_refusal(lab):
    lab.machine.largest = 3
    id = lab.create(budget={"trials": 4}, parallel=3)
    lab.run(id)
    campaign, trials = lab.campaign(id), lab.trials(id)
    told = f"so the spec or the runner's options are wrong: {REFUSED.format(trials[0].last.job_name)}"
    assert campaign.state is CampaignState.FAILED
    assert campaign.reason == f"the runner takes no such jobs, {told}; mend it and start a new campaign"
    assert lab.verdicts(id) == ["cancelled"] * 3
    assert all(told in trial.outcome.reason for trial in trials)
    assert not lab.machine.jobs


HELD = "JobHeldAdmin"


def test_what_must_be_mended_before_a_queued_job_starts_is_its_campaigns_trouble(lab, make):
    lab.machine.script = lambda name: make.Behaviour(queue_s=60.0, hindered="the next pilot could not be sent: MaxTime")
    id = lab.create(budget={"trials": 1})
    lab.run(id, until=lambda: lab.service.waits(id) is not None)
    assert str(lab.service.waits(id)) == "the next pilot could not be sent: MaxTime"
    lab.run(id)
    assert (lab.service.waits(id), lab.verdicts(id)) == (None, ["ok"])


def test_a_job_that_waits_too_long_is_withdrawn_and_sent_again_when_the_campaign_is_resumed(lab, make):
    lab.machine.script = lambda name: make.Behaviour(queue_s=9999.0 if name.endswith("-a1") else 0.0, why=HELD)
    id = lab.create(budget={"trials": 2}, trial={"queue_limit_s": 60})
    lab.run(id, until=lambda: lab.trials(id) and lab.trials(id)[0].last.wait == HELD)
    (waiting,) = lab.trials(id)
    assert wait_text(waiting.last) == "queued since 1970-01-01 00:16 UTC: JobHeldAdmin"
    assert lab.service.sessions.queued() == {"fake": [pytest.approx(lab.now - waiting.last.submitted_at)]}
    told = f"waited longer than its queue limit of 60 s: {HELD}"
    for number in range(2):
        lab.run(id, until=lambda: lab.campaign(id).state is CampaignState.PAUSED)
        assert lab.campaign(id).reason == f"trial {number} {told}; resume it to go on"
        # A service that starts meanwhile sends nothing.
        lab.kill()
        lab.open()
        for _ in range(20):
            lab.tick(id, 10.0)
        assert len(lab.machine.sent) == 2 * number + 1
        lab.service.resume(id)
        lab.run(id, until=lambda: lab.campaign(id).state is not CampaignState.RUNNING)
    assert lab.verdicts(id) == ["ok", "ok"]
    first, second = lab.trials(id)[0].attempts
    assert (first.outcome.verdict, first.outcome.cause, first.outcome.reason) == ("cancelled", "queue_limit", told)
    assert first.started_at is None
    assert (second.number, second.wait) == (2, "")


def test_a_job_that_started_within_its_queue_limit_and_was_not_looked_at_since_is_not_withdrawn(lab, make):
    look = SharedLook(clock=lambda: lab.now)
    lab.wrap = lambda thing: SharedRunner(thing, look, period_s=45.0) if hasattr(thing, "poll") else thing
    lab.machine.script = lambda name: make.Behaviour(queue_s=50.0 if name.endswith("t0000-a1") else 9999.0, run_s=100.0)
    id = lab.create(budget={"trials": 2}, trial={"queue_limit_s": 60})
    lab.run(id, until=lambda: lab.campaign(id).state is CampaignState.PAUSED, step_s=1.0)
    assert lab.verdicts(id) == ["ok", "cancelled"]
    assert len(lab.machine.cancels) == 1


def test_three_preemptions_do_not_drop_a_plan(lab, make, monkeypatch):
    preempted = Outcome(verdict=Verdict.LOST, cause=Cause.PREEMPTION, reason="preempted")
    read = make.FakeWorkload.read
    early = ("-a1", "-a2", "-a3")
    monkeypatch.setattr(
        make.FakeWorkload,
        "read",
        lambda one, folder, how: preempted if folder.name.endswith(early) else read(one, folder, how),
    )
    id = lab.create(budget={"trials": 1})
    lab.run(id)
    (trial,) = lab.trials(id)
    assert (trial.verdict, len(trial.attempts)) == (Verdict.OK, 4)


def test_a_job_that_is_wrong_itself_is_illegal_and_the_campaign_goes_on(lab):
    id = lab.create(budget={"trials": 3})
    lab.run(id, until=lambda: bool(lab.trials(id)))
    lab.machine.troubles.extend([InvalidJob("its command is empty")])
    lab.run(id)
    assert lab.verdicts(id) == ["illegal", "ok", "ok"]
    assert lab.campaign(id).state is CampaignState.COMPLETED


# What the runner does to us


def test_a_runner_that_forgot_a_job_costs_an_attempt_not_the_trial(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=50.0)
    id = lab.create(budget={"trials": 1})
    lab.run(id, until=lambda: lab.trials(id) and lab.trials(id)[0].state is TrialState.RUNNING)
    lab.machine.jobs.clear()
    lab.run(id)
    (trial,) = lab.trials(id)
    assert [str(attempt.outcome.verdict) for attempt in trial.attempts] == ["lost", "ok"]


# What the search does to us


def test_a_search_that_fails_ends_the_campaign_as_failed_with_its_words(lab):
    def refuse(space, seen, n):
        raise ValueError("singular matrix")

    lab.search.say = refuse
    id = lab.create()
    lab.run(id)
    assert lab.campaign(id).state is CampaignState.FAILED
    assert lab.campaign(id).reason == "the search fake failed: ValueError: singular matrix"


def test_a_search_that_fails_while_trials_run_is_asked_again_when_one_has_ended(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=10.0)

    def say(space, seen, n):
        if any(one.verdict is None for one in seen):
            raise ValueError("pending trials confuse me")
        return untried(space, seen, 1)

    lab.search.say = say
    id = lab.create(parallel=2, budget={"trials": 3})
    lab.run(id)
    assert lab.verdicts(id) == ["ok"] * 3
    assert lab.campaign(id).state is CampaignState.COMPLETED
    # Once alone, once beside the running trial, for each of the trials: not at every tick.
    assert len(lab.search.asked) <= 6


def test_a_search_with_nothing_to_say_is_not_asked_at_every_tick(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=50.0)
    lab.search.say = lambda space, seen, n: [] if seen else [space[0]]
    id = lab.create(parallel=2, budget={"trials": 5})
    lab.run(id)
    assert lab.search.asked == [2, 1, 2]
    assert lab.campaign(id).reason == "the search fake proposes no further plan"


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda space, seen, n: [space.complete(tp=3)], "it proposed the illegal plan tp3"),
        (lambda space, seen, n: [space.complete(tp=2, zero_stage=3)], "zero_stage(3) is not among 0, 1"),
        (lambda space, seen, n: [space[0]] * 2, "it proposed the plan tp1 pp1 dp4 mbs1 ga2 zero0 again"),
        (lambda space, seen, n: None, "TypeError"),
    ],
)
def test_a_search_that_proposes_nonsense_is_named_and_nothing_of_it_runs(lab, say, reason):
    lab.search.say = say
    id = lab.create(parallel=2)
    lab.run(id)
    assert lab.campaign(id).state is CampaignState.FAILED
    assert reason in lab.campaign(id).reason
    assert lab.trials(id) == []


def test_the_search_sees_the_history_in_the_order_of_choosing_with_scores(lab, make):
    kinds = ["ok", "oom", "lost", "ok"]
    lab.machine.script = lambda name: make.Behaviour(kinds[int(name.split("-t")[1][:4])])
    seen_last = []

    def say(space, seen, n):
        seen_last[:] = seen
        return untried(space, seen, n)

    lab.search.say = say
    id = lab.create(budget={"trials": 5}, trial={"attempts": 1})
    kinds.append("ok")
    lab.run(id)
    assert [(s.plan, str(s.verdict)) for s in seen_last] == [
        (trial.plan, kind) for trial, kind in zip(lab.trials(id), kinds[:4], strict=False)
    ]
    assert [s.score is not None for s in seen_last] == [True, False, False, True]
    assert seen_last[0].score == pytest.approx(1024 / 4 / lab.trials(id)[0].measurement.step_time_s)


# Budgets


def test_a_wall_time_budget_ends_the_campaign_and_its_running_jobs(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=40.0)
    id = lab.create(budget={"wall_time_s": 100.0}, parallel=2)
    lab.run(id, step_s=1.0)
    assert lab.campaign(id).reason == "the wall-time budget of 100 s is spent"
    assert lab.campaign(id).state is CampaignState.COMPLETED
    assert lab.verdicts(id) == ["ok"] * 4 + ["cancelled"] * 2
    assert lab.trials(id)[-1].outcome.reason == "cancelled"
    assert all(job.status(lab.now).state.final for job in lab.machine.jobs.values())
    assert 1100 <= lab.now < 1105


def test_device_hours_count_devices_times_the_time_that_jobs_hold_them(lab, make):
    lab.machine.script = lambda name: make.Behaviour(queue_s=500.0, run_s=360.0)
    id = lab.create(budget={"device_hours": 1.0}, parallel=1)
    lab.run(id, step_s=10.0)
    # 4 devices * 900 s = 1 h: two whole trials of 360 s, and 180 s of the third; waiting costs nothing.
    assert lab.verdicts(id) == ["ok", "ok", "cancelled"]
    assert lab.campaign(id).reason == "the budget of 1 device-hours is spent"
    assert sum(trial.last.running_s for trial in lab.trials(id)) == pytest.approx(900, abs=25)


def test_only_time_that_a_service_works_on_a_running_campaign_counts(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=1000.0)
    id = lab.create(budget={"wall_time_s": 10_000.0})
    lab.tick(id)
    lab.tick(id, 10.0)
    lab.service.close()  # until here 10 s
    lab.now += 500.0
    lab.open()
    lab.tick(id)
    lab.tick(id, 7.0)  # 17 s
    lab.service.pause(id)
    lab.tick(id, 3.0)  # in the pause by now
    lab.tick(id, 300.0)
    lab.service.resume(id)
    lab.tick(id, 100.0)
    assert lab.service.current(id).elapsed_s == pytest.approx(117.0)
    lab.tick(id, 0.25)
    assert lab.service.current(id).elapsed_s == pytest.approx(117.25)
    assert lab.campaign(id).elapsed_s == pytest.approx(117.0)  # saved every few seconds of work
    lab.service.release(id)
    assert lab.campaign(id).elapsed_s == pytest.approx(117.25)


# Pause, resume, cancel


def test_a_pause_lets_running_trials_finish_and_starts_no_more(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=10.0)
    id = lab.create(parallel=2, budget={"trials": 6})
    lab.run(id, until=lambda: [t.state for t in lab.trials(id)] == [TrialState.RUNNING] * 2)
    lab.service.pause(id)
    lab.run(id, until=lambda: all(t.state.final for t in lab.trials(id)))
    for _ in range(5):
        assert not lab.tick(id, 1.0)
    assert lab.verdicts(id) == ["ok", "ok"]
    assert lab.campaign(id).state is CampaignState.PAUSED
    lab.service.resume(id)
    lab.run(id)
    assert lab.verdicts(id) == ["ok"] * 6


def test_a_planned_trial_of_a_cancelled_campaign_is_withdrawn_without_being_sent(lab):
    id = lab.create()
    lab.run(id, until=lambda: len(lab.trials(id)) == 1)
    assert lab.trials(id)[0].state is TrialState.PLANNED
    lab.service.cancel(id)
    lab.run(id)
    assert lab.verdicts(id) == ["cancelled"]
    assert not lab.machine.sent


def test_a_job_that_cannot_be_cancelled_is_asked_once_and_waited_for(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=30.0, cancellable=False)
    id = lab.create(budget={"trials": 1})
    lab.run(id, until=lambda: lab.trials(id) and lab.trials(id)[0].state is TrialState.RUNNING)
    lab.service.cancel(id)
    lab.run(id)
    assert lab.verdicts(id) == ["ok"]  # it was measured after all, and that is kept
    assert len(lab.machine.cancels) == 1
    assert lab.campaign(id).state is CampaignState.CANCELLED


@pytest.mark.parametrize("order", ["pause", "cancel"])
def test_an_order_that_comes_in_the_middle_of_a_tick_is_obeyed_by_the_next(lab, order):
    """The search takes its time; meanwhile somebody pauses the campaign, whose new trials the store then refuses."""

    def say(space, seen, n):
        getattr(lab.service, order)(id)
        return [space[0]]

    lab.search.say = say
    id = lab.create()
    assert lab.tick(id) is False
    assert lab.trials(id) == []
    lab.tick(id)
    assert lab.campaign(id).state is (CampaignState.PAUSED if order == "pause" else CampaignState.CANCELLED)


# Creating


def test_ids_are_readable_safe_and_different_for_equal_names(lab):
    ids = [lab.create(name="Llama 8B: zu gro\u00df/../?") for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(id.startswith("llama-8b-zu-gro-") for id in ids)
    assert lab.create(name="\u00df").startswith("campaign-")


# Confirmations


def test_with_several_in_flight_the_last_word_plans_nothing_and_what_runs_is_awaited(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=5.0 if "-t0003" in name else 1.0)
    lab.search.say = lambda space, seen, n: proposal(space, seen, n, 0.2 if len(seen) < 4 else 0.008)
    id = lab.create(parallel=2, budget={"trials": 9}, confirm=3)
    lab.run(id, until=lambda: lab.campaign(id).search_ended)
    assert lab.trials(id)[3].state is TrialState.RUNNING
    lab.run(id, until=lambda: lab.trials(id)[-1].origin is Origin.CONFIRMATION)
    assert [trial.state for trial in lab.trials(id)[:4]] == [TrialState.DONE] * 4
    asked = len(lab.search.asked)
    lab.run(id)
    assert (len(lab.search.asked), len(lab.trials(id))) == (asked, 10)
    assert lab.machine.most_at_once == 2


@pytest.mark.parametrize("chance", [-0.1, 1.1, float("nan")])
def test_a_chance_that_is_no_probability_is_the_searchs_failure(lab, chance):
    lab.search.say = lambda space, seen, n: proposal(space, seen, n, chance)
    id = lab.create()
    lab.run(id)
    assert lab.campaign(id).state is CampaignState.FAILED
    assert lab.campaign(id).reason.endswith(f"it gave the chance left as {chance}, which is no probability")
    assert lab.trials(id) == []


def test_what_was_expected_stays_with_the_trial_and_nothing_is_expected_of_a_confirmation(lab):
    expected = Expectation(
        step_time_s=1.0, step_time_low_s=0.5, step_time_high_s=2.0, p_fits=0.9, gain=0.03, peak_bytes=2.0**30
    )
    lab.search.say = lambda space, seen, n: proposal(space, seen, n, expectation=expected)
    id = lab.create(baseline={"tp": 1}, confirm=2)
    lab.run(id)
    again = lab.trials(id)[4:]
    assert [trial.expectation for trial in lab.trials(id)] == [None, *[expected] * 3, *[None] * len(again)]
    assert len(again) >= 2


# Racing against the best one so far


def incumbents(lab, id):
    """What each trial's job was told to beat, by trial number."""
    jobs = {trial.number: lab.machine.jobs[trial.last.job_name] for trial in lab.trials(id)}
    return [json.loads(jobs[number].spec.env["INCUMBENT_STEP_TIME_S"]) for number in sorted(jobs)]


def test_a_racing_trial_is_told_the_upper_end_of_the_best_ones_interval_and_without_racing_nothing(lab):
    baseline = {"tp": 1, "micro_batch_size": 1}
    alone = lab.create(baseline=baseline)
    lab.run(alone)
    assert incumbents(lab, alone) == [None] * 4
    id = lab.create(baseline=baseline, trial={"racing": True})
    lab.run(id)
    told = incumbents(lab, id)
    assert told[0] is None
    measured = [trial.measurement for trial in lab.trials(id)]
    for number in range(1, len(told)):
        best = max(measured[:number], key=lambda measurement: measurement.tokens_per_s)
        assert told[number] == pytest.approx(best.step_time_interval_s.high)
    assert len(set(told)) > 1


def test_with_a_free_batch_the_incumbent_is_scaled_to_the_tokens_of_a_step(lab):
    id = lab.create(global_batch_size="free", space={"grad_accum_steps": [1, 4], "pp": [1]}, trial={"racing": True})
    lab.run(id)
    told, trials = incumbents(lab, id), lab.trials(id)
    assert len({trial.measurement.tokens_per_step for trial in trials}) > 1
    for number in range(1, len(told)):
        best = max((t.measurement for t in trials[:number]), key=lambda measurement: measurement.tokens_per_s)
        scale = trials[number].measurement.tokens_per_step / best.tokens_per_step
        assert told[number] == pytest.approx(scale * best.step_time_interval_s.high)


# Deletion


@pytest.fixture
def over(lab, make) -> str:
    """A campaign that is over."""
    campaign = make.campaign(lab.spec(), CampaignState.COMPLETED)
    lab.store.create_campaign(campaign)
    return campaign.id


def test_what_an_interrupted_deletion_left_in_the_bin_goes_with_the_next(lab, over):
    (lab.home.bin / "earlier-1" / "job").mkdir(parents=True)
    (lab.home.campaign(over) / "job").mkdir(parents=True)
    lab.service.delete(over)
    assert list(lab.home.bin.iterdir()) == []
    assert not lab.home.campaign(over).exists()


def test_a_campaign_whose_folder_is_gone_is_deleted_all_the_same(lab, over):
    lab.service.delete(over)
    with pytest.raises(NotFound):
        lab.store.campaign(over)


def test_where_the_rows_stay_the_folder_stays(lab):
    id = lab.create()
    lab.home.campaign(id).mkdir(parents=True)
    with pytest.raises(IllegalMove, match="only what is over is deleted"):
        lab.service.delete(id)
    assert lab.home.campaign(id).exists()


def test_a_service_ends_quietly_where_its_database_is_away_by_then(lab, monkeypatch, caplog):
    id = lab.create()
    lab.run(id, until=lambda: any(trial.state == "running" for trial in lab.trials(id)))

    def away(*_):
        raise StoreUnavailable("the database is locked by another process", transient=True)

    with monkeypatch.context() as patch:
        patch.setattr(lab.service.store.leases, "guarding", away)
        patch.setattr(lab.service.sessions.holder, "leave", away)
        lab.service.close()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"the time of campaign {id} was not saved",
        "the leases were not given back",
    ]
