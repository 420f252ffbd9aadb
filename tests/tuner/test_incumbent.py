"""Where the spec says so, trials race against the best one measured so far; the baseline never does."""

from __future__ import annotations

import json

import pytest

BASELINE = {"tp": 1, "micro_batch_size": 1}


def incumbents(lab, id):
    """What each trial's job was told to beat, by trial number."""
    jobs = {trial.number: lab.machine.jobs[trial.last.job_name] for trial in lab.trials(id)}
    return [json.loads(jobs[number].spec.env["INCUMBENT_STEP_TIME_S"]) for number in sorted(jobs)]


def test_without_racing_no_job_hears_of_another(lab):
    id = lab.create(baseline=BASELINE)
    lab.run(id)
    assert incumbents(lab, id) == [None] * 4


def test_a_racing_trial_is_told_the_upper_end_of_the_best_ones_interval(lab):
    id = lab.create(baseline=BASELINE, trial={"racing": True})
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
