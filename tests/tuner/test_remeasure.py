"""Measuring again: fresh jobs, nothing stored, no job left behind."""

from __future__ import annotations

import pytest

from meshtune.runners.base import RunnerUnavailable, SubmitFailed
from meshtune.runners.outcome import Verdict
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


def test_a_job_that_cannot_be_sent_is_told(lab, done):
    lab.machine.troubles.append(SubmitFailed("disk full"))
    with pytest.raises(SubmitFailed, match="disk full"):
        list(remeasure(lab.service, done, lab.trials(done.id)))
