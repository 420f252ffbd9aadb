"""Broken trainings whose losses look right: the gradient norms of the first steps find them, in real jobs."""

from __future__ import annotations

import pytest

from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.campaign.eligibility import LOSS_TOLERANCES, check_losses, check_norms, tolerance_of
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.ranking import rank

pytestmark = pytest.mark.slow

# The losses of all micro-batches, and the gradient of the last one alone.
LAST_MICRO_BATCH_ALONE = """
import torch
from torch.distributed.pipelining import stage
backward = stage._PipelineStageBase.backward_one_chunk

def forgetful(self, chunk, *arguments, last_backward=False, **options):
    for model in [self.submod]:
        for parameter in model.parameters():
            parameter.grad = None
    return backward(self, chunk, *arguments, last_backward=last_backward, **options)

stage._PipelineStageBase.backward_one_chunk = forgetful
import meshtune.runners.trainer.parallel.sharding as sharding
collect = sharding.FlatAdamW._collect

def overwriting(self, parameter):
    self._sums[parameter].empty = True
    collect(self, parameter)

sharding.FlatAdamW._collect = overwriting
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


@pytest.mark.parametrize("defect", PLANTED)
def test_a_wrong_gradient_behind_right_losses_is_found_and_never_recommended(defect, run_job, make_job):
    layout, sabotage = PLANTED[defect]
    job = {"learning_rate": 1e-4}
    base = run_job(make_job(plan={"micro_batch_size": 8}, **job))
    sound, broken = (run_job(make_job(plan=layout, **job), defect) for defect in ("", sabotage))
    print(base.losses, sound.losses, broken.losses)
    for run in (base, sound, broken):
        print(run.measurement.first_gradient_norms)
    tolerance = tolerance_of(LOSS_TOLERANCES, "float32")
    assert check_losses(broken.losses, base.losses, tolerance).equal
