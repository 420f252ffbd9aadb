"""Measuring again by fresh jobs, with nothing stored; and whether a stored optimum still stands."""

from __future__ import annotations

import pytest

from meshtune.runners.base import RunnerUnavailable, SubmitFailed
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.revalidation import Standing, judge, to_measure
from meshtune.tuner.service.service import remeasure


@pytest.fixture
def done(lab, make):
    """A finished campaign, whose jobs measured again end at once."""
    lab.machine.script = lambda name: make.Behaviour(run_s=0.0 if "-again-" in name else 1.0)
    id = lab.create(budget={"trials": 2})
    lab.run(id)
    return lab.campaign(id)


def test_each_trial_is_measured_by_a_fresh_job_and_nothing_is_stored(lab, done):
    before = lab.store.events(done.id)
    again = list(remeasure(lab.service, done, lab.trials(done.id)))
    assert [(trial.number, outcome.verdict) for trial, outcome in again] == [(0, Verdict.OK), (1, Verdict.OK)]
    assert len([name for name in lab.machine.sent if "-again-" in name]) == 2
    assert lab.store.events(done.id) == before


def test_a_runner_that_is_silent_for_a_while_is_waited_for(lab, done):
    silent = iter([RunnerUnavailable("no answer")] * 3)

    def answer():
        if any("-again-" in name for name in lab.machine.jobs):
            for error in silent:
                raise error

    lab.machine.answer = answer
    again = remeasure(lab.service, done, lab.trials(done.id)[:1])
    assert [outcome.verdict for _, outcome in again] == [Verdict.OK]
    assert next(silent, None) is None


def test_a_job_may_wait_in_a_queue_for_as_long_as_it_takes(lab, done, make, monkeypatch):
    lab.machine.script = lambda name: make.Behaviour(queue_s=3600.0, run_s=1.0)
    clock = [0.0]
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        lab.now += 60.0
        clock[0] += 60.0

    monkeypatch.setattr("meshtune.tuner.service.service.time.sleep", sleep)
    monkeypatch.setattr("meshtune.tuner.service.service.time.monotonic", lambda: clock[0])
    limit_s = done.spec.trial.time_limit_s
    assert 2 * limit_s + 60 < 3600
    assert [outcome.verdict for _, outcome in remeasure(lab.service, done, lab.trials(done.id)[:1])] == [Verdict.OK]
    assert (pauses[0], max(pauses)) == (0.05, 2.0)


def test_a_job_that_runs_for_ever_is_given_up_and_cancelled(lab, done, make, monkeypatch):
    lab.machine.script = lambda name: make.Behaviour(run_s=1e9)
    clock = [0.0]

    def sleep(seconds):
        clock[0] += 60.0

    monkeypatch.setattr("meshtune.tuner.service.service.time.sleep", sleep)
    monkeypatch.setattr("meshtune.tuner.service.service.time.monotonic", lambda: clock[0])
    with pytest.raises(RunnerUnavailable, match="has not ended within 660 s: it still runs"):
        list(remeasure(lab.service, done, lab.trials(done.id)[:1]))
    assert len(lab.machine.cancels) == 1


@pytest.mark.parametrize("queue_s", [0.0, 3500.0])
def test_a_job_that_ended_or_began_while_we_were_stopped_is_measured(queue_s, lab, done, make, monkeypatch):
    """As by Ctrl-Z, for longer than we would have waited."""
    lab.machine.script = lambda name: make.Behaviour(queue_s=queue_s, run_s=200.0)
    clock = [0.0]

    def sleep(seconds):
        lab.now += 3600.0
        clock[0] += 3600.0

    monkeypatch.setattr("meshtune.tuner.service.service.time.sleep", sleep)
    monkeypatch.setattr("meshtune.tuner.service.service.time.monotonic", lambda: clock[0])
    assert [outcome.verdict for _, outcome in remeasure(lab.service, done, lab.trials(done.id)[:1])] == [Verdict.OK]
    assert lab.machine.cancels == []


def test_a_job_that_cannot_be_sent_is_told(lab, done):
    lab.machine.troubles.append(SubmitFailed("disk full"))
    with pytest.raises(SubmitFailed, match="disk full"):
        list(remeasure(lab.service, done, lab.trials(done.id)))


BEST, SECOND, THIRD = (Plan(dp=4, micro_batch_size=size) for size in (1, 2, 4))


@pytest.fixture
def campaign(lab, make):
    return make.campaign(lab.spec(), CampaignState.COMPLETED)


@pytest.fixture
def trials(make):
    """BEST took 1 s a step, SECOND 1.1 s, THIRD 1.2 s."""

    def build(software=None, again=None):
        known = {"software": software or {}}
        found = [
            make.trial(number, make.measurement(step, **known), plan=plan)
            for number, (step, plan) in enumerate(((1.0, BEST), (1.1, SECOND), (1.2, THIRD)))
        ]
        if again is not None:
            found.append(make.trial(3, make.measurement(again, **known), plan=BEST, origin=Origin.CONFIRMATION))
        return found

    return build


def judged(campaign, trials, *ends):
    """What these ends of the fresh runs say: seconds a step, measurements or outcomes."""
    entries = to_measure(campaign, trials)
    return judge(campaign, entries, ends[: len(entries)])


@pytest.fixture
def ok(make):
    return lambda step, **more: Outcome(verdict=Verdict.OK, measurement=make.measurement(step, **more))


def test_the_optimum_and_the_best_other_plan_are_measured(campaign, trials):
    assert [entry.trial.plan for entry in to_measure(campaign, trials())] == [BEST, SECOND]
    assert [entry.trial.plan for entry in to_measure(campaign, trials()[2:])] == [THIRD]
    assert to_measure(campaign, []) == []


def test_a_plan_that_does_not_train_as_the_baseline_is_no_runner_up(lab, make):
    campaign = make.campaign(lab.spec(baseline={"tp": 1}), CampaignState.COMPLETED)
    trained, other = {"first_losses": (7.0, 6.9)}, {"first_losses": (3.0, 2.0)}
    found = [
        make.trial(0, make.measurement(1.2, **trained), plan=THIRD, origin=Origin.BASELINE),
        make.trial(1, make.measurement(1.0, **trained), plan=BEST),
        make.trial(2, make.measurement(1.1, **other), plan=SECOND),
    ]
    assert [entry.trial.plan for entry in to_measure(campaign, make.thrice(found))] == [BEST, THIRD]


@pytest.mark.parametrize(
    ("optimum", "rival", "finding", "words"),
    [
        ((1.0, 0.001), (1.1, 0.001), Standing.STANDS, "stands: +0.0 % (-0.2 to +0.2 %) against the record"),
        ((0.5, 0.001), (0.6, 0.001), Standing.STANDS, "stands: +100.0 %"),
        ((1.25, 0.001), (1.4, 0.001), Standing.SLOWER, "slower by 20.0 % (19.9 to 20.1 %) than it was"),
        # Within the tolerance, or the noise.
        ((1.015, 0.001), (1.2, 0.001), Standing.STANDS, "stands: -1.5 %"),
        ((1.1, 0.2), (1.2, 0.001), Standing.STANDS, "stands: -9.1 %"),
        (
            (1.0, 0.001),
            (0.8, 0.001),
            Standing.OVERTAKEN,
            f"the runner-up, {SECOND.key}, is better now by 25.0 % (24.8 to 25.2 %): tune again",
        ),
        ((1.0, 0.001), (0.985, 0.001), Standing.STANDS, "stands"),
        ((1.0, 0.001), (0.9, 0.2), Standing.STANDS, "stands"),
        ((1.0, 0.001), Verdict.OOM, Standing.STANDS, "stands"),
        (Verdict.OOM, (1.1, 0.001), Standing.FAILED, "fails now: oom: it broke; tune again"),
        (Verdict.LOST, (1.1, 0.001), Standing.UNKNOWN, "not measured: lost: it broke; try again"),
    ],
)
def test_fresh_runs_of_both_plans_decide(campaign, trials, ok, optimum, rival, finding, words):
    """optimum, rival: seconds of a step and their spread, or a verdict."""
    ends = [
        Outcome(verdict=given, reason="it broke") if isinstance(given, Verdict) else ok(given[0], spread=given[1])
        for given in (optimum, rival)
    ]
    found = judged(campaign, trials(), *ends)
    assert (found.finding, found.stands) == (finding, finding is Standing.STANDS)
    assert found.words.startswith(words)
    assert (found.optimum.tokens_per_s_per_device.now is None) == isinstance(optimum, Verdict)


def test_how_well_the_campaign_reproduced_itself_widens_the_interval(campaign, trials, ok):
    shaky = trials(again=1.1)  # 10 % slower at once
    assert judged(campaign, shaky, ok(1.25), ok(1.4)).finding is Standing.STANDS
    assert judged(campaign, trials(again=1.0), ok(1.25), ok(1.4)).finding is Standing.SLOWER


def test_versions_that_changed_are_told(campaign, trials, ok):
    before, now = {"torch": "2.12", "driver": "570", "python": "3.11"}, {"torch": "2.13", "driver": "570", "nccl": "3"}
    found = judged(campaign, trials(software=before), ok(1.0, software=now), ok(1.1))
    assert found.optimum.software_changes == {
        "nccl": ("unknown", "3"),
        "python": ("3.11", "unknown"),
        "torch": ("2.12", "2.13"),
    }
