"""Broken trainings whose losses look right: the gradient norms of the first steps find them, in real jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.trainer.job import Measuring
from meshtune.tuner.campaign.eligibility import Ground, Reason, eligibility
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

# The losses of all micro-batches, and the gradient of the last one alone.
LAST_MICRO_BATCH_ALONE = """
from meshtune.runners.trainer.parallel.sharding import FlatAdamW
collect = FlatAdamW._collect

def overwriting(self, parameter):
    self._sums[parameter].empty = True
    collect(self, parameter)

FlatAdamW._collect = overwriting
"""
NO_ALL_REDUCE = """
from meshtune.runners.trainer.parallel.sharding import FlatAdamW
FlatAdamW._start = lambda self, bucket: setattr(bucket.master, "grad", self._gradients[bucket.span])
"""
NOT_AVERAGED = """
import meshtune.runners.trainer.train as train
step = train.Trainer._scale_losses
train.Trainer._scale_losses = lambda self, factor: step(self, factor * self._job.plan.grad_accum_steps)
take = train.Trainer.global_loss
train.Trainer.global_loss = lambda self, loss: take(self, loss / self._job.plan.grad_accum_steps)
"""
PLANTED = {
    "a pipeline trains on its last micro-batch alone": ({"pp": 2}, LAST_MICRO_BATCH_ALONE),
    "gradients are not summed over the replicas": ({"dp": 2, "zero_stage": 0}, NO_ALL_REDUCE),
    "accumulated gradients are not averaged": ({}, NOT_AVERAGED),
}


@pytest.fixture(scope="module")
def spec():
    text = "{model: gpt-micro, cluster: local-cpu, global_batch_size: 8, baseline: {tp: 1}}"
    return read_spec(parse_yaml(text), None)[0]


@pytest.mark.parametrize("defect", PLANTED)
def test_a_wrong_gradient_behind_right_losses_is_found(defect, spec, run_job, make_job):
    layout, sabotage = PLANTED[defect]
    base = run_job(make_job(plan={"micro_batch_size": 8}, learning_rate=3e-5)).measurement
    sound = run_job(make_job(plan=layout, learning_rate=3e-5)).measurement
    broken = run_job(make_job(plan=layout, learning_rate=3e-5), sabotage).measurement
    ground = Ground(spec=spec, reference=None, baseline=base, dtype="float32")
    assert eligibility(ground, spec.baseline, sound) is None
    assert eligibility(ground, spec.baseline, broken) is Reason.TRAINING
    assert "does not train the same: the gradient norm of step 0 is " in str(ground.training(broken))
    # By its losses alone it would be recommended.
    assert eligibility(ground, spec.baseline, replace(broken, first_gradient_norms=())) is None


def test_norms_are_told_of_steps_that_are_not_timed(run_job, make_job):
    measuring = Measuring(max_warmup_steps=0, min_steps=4, max_steps=4, profile_steps=0, loss_steps=4)
    measured = run_job(make_job(measuring=measuring)).measurement
    assert (len(measured.first_losses), len(measured.first_gradient_norms)) == (4, 2)
    untold = run_job(make_job(measuring=replace(measuring, loss_steps=1))).measurement
    assert untold.first_gradient_norms == measured.first_gradient_norms[:1]


def test_a_loss_scale_is_no_part_of_a_norm_and_an_overflow_ends_them(run_job, make_job):
    exact = run_job(make_job(plan={"micro_batch_size": 8})).measurement.first_gradient_norms
    scaled = run_job(make_job(plan={"micro_batch_size": 8}, dtype="float16")).measurement.first_gradient_norms
    assert scaled == pytest.approx(exact[: len(scaled)], rel=1e-2)
    huge = "from meshtune.runners.trainer import train; train.INITIAL_FACTOR = 2.0**40"
    assert run_job(make_job(dtype="float16"), huge).measurement.first_gradient_norms == ()
