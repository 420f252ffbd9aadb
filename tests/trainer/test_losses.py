"""The comparison of losses has teeth: another training shows, and so does every single broken sum, place or shard.

The layouts themselves are compared in test_matrix.py.
"""

from __future__ import annotations

import pytest

TOLERANCE = 1e-4
GPT: dict[str, object] = {"kv_heads": 4, "norm": "layernorm", "position": "learned", "tied_head": True}
MIXTURE: dict[str, object] = {"experts": 4, "top_k": 2}

NO_SUM_OVER_REPLICAS = """
from meshtune.runners.trainer.parallel.sharding import FlatAdamW
FlatAdamW._start = lambda self, bucket: setattr(bucket.master, "grad", self._gradients[bucket.span])
"""
ROTATIONS_START_ANEW = """
from meshtune.runners.trainer.model import Rotation
init = Rotation.__init__
Rotation.__init__ = lambda self, places, head_dim: init(self, (range(sum(map(len, places))),), head_dim)
"""
TIED_COPIES_APART = """
from meshtune.runners.trainer.train import Trainer
Trainer._sum_tied = lambda self: None
"""
NORMS_NOT_SUMMED = """
import meshtune.runners.trainer.train as train
build_chunk = train.build_chunk

def forgetful(*arguments):
    model = build_chunk(*arguments)
    model.partial_gradients.clear()
    return model

train.build_chunk = forgetful
"""
EXPERTS_SUMMED_AS_THE_REST = """
from dataclasses import replace
import meshtune.runners.trainer.train as train
build_optimizer = train.build_optimizer
train.build_optimizer = lambda job, mesh, *rest: build_optimizer(
    job, replace(mesh, experts=replace(mesh.experts, replicas=mesh.replicas)), *rest
)
"""
GROUPS_APART = """
from meshtune.runners.trainer.parallel.sharding import FlatAdamW
FlatAdamW._sum_copies = lambda self: None
"""
# Fails where a bucket that may be reduced in the backward pass was not.
SMALL_BUCKETS = """
import meshtune.runners.trainer.parallel.sharding as sharding
sharding.BUCKET_ELEMENTS = 1000
reduce = sharding.FlatAdamW.reduce

def checked(self):
    early = [bucket for bucket in self._buckets if not bucket.late]
    assert len(early) > 1
    assert all(bucket.master.grad is not None for bucket in early)
    assert all(bucket.master.grad is None for bucket in self._buckets if bucket.late)
    return reduce(self)

sharding.FlatAdamW.reduce = checked
"""
WEIGHTS_OF_OTHERS_STALE = """
from meshtune.runners.trainer.parallel.sharding import FlatAdamW
FlatAdamW._gather = lambda self: None
"""
# Fails where the first part of the model waits for the weights of the last one.
GATHERS_BESIDE_THE_FORWARD_PASS = """
import meshtune.runners.trainer.parallel.sharding as sharding
sharding.BUCKET_ELEMENTS = 1000
wait, under_way = sharding.FlatAdamW.await_weights, []

def noted(self, part):
    wait(self, part)
    assert not any(bucket.gathering for bucket in self._buckets_of[part])
    under_way.append(sum(bucket.gathering is not None for bucket in self._buckets))

sharding.FlatAdamW.await_weights = noted
import meshtune.runners.trainer.train as train
step = train.Trainer.step

def stepped(self, tokens, targets):
    under_way.clear()
    loss = step(self, tokens, targets)
    self.taken = getattr(self, "taken", 0) + 1
    assert self.taken == 1 or under_way[0] > 0, under_way
    assert under_way[-1] == 0, under_way
    return loss

train.Trainer.step = stepped
"""
BREAKS = [
    pytest.param(NO_SUM_OVER_REPLICAS, {}, {"dp": 2}, id="no sum over the replicas"),
    pytest.param(WEIGHTS_OF_OTHERS_STALE, {}, {"dp": 2, "zero_stage": 1}, id="weights of other replicas stay stale"),
    pytest.param(ROTATIONS_START_ANEW, {}, {"cp": 2}, id="rotations start anew on each rank"),
    pytest.param(TIED_COPIES_APART, GPT, {"pp": 2}, id="copies of a tied weight drift apart"),
    pytest.param(NORMS_NOT_SUMMED, {"kv_heads": 1}, {"tp": 2, "micro_batch_size": 4}, id="a part of a sum"),
    pytest.param(GROUPS_APART, {}, {"dp": 4, "zero_stage": 1, "zero_group": 2}, id="no sum over the groups that shard"),
    pytest.param(EXPERTS_SUMMED_AS_THE_REST, MIXTURE, {"dp": 2, "ep": 2}, id="sum of different experts"),
]


def difference(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("sabotage", "model", "plan"), BREAKS)
def test_what_is_broken_shows(sabotage, model, plan, run_job, make_job):
    expected = run_job(make_job(model=model, plan={"micro_batch_size": 8})).losses
    broken = run_job(make_job(model=model, plan=plan), sabotage).losses
    assert difference(broken, expected) > TOLERANCE


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ({}, {"dp": 2, "zero_stage": 1, "grad_accum_steps": 2}),
        ({}, {"dp": 2, "zero_stage": 0}),
        (GPT, {"pp": 2, "dp": 2, "zero_stage": 1, "grad_accum_steps": 2}),
        (MIXTURE, {"dp": 2, "ep": 2, "zero_stage": 1, "grad_accum_steps": 2}),
        ({}, {"dp": 4, "zero_stage": 1, "zero_group": 2, "grad_accum_steps": 2}),
    ],
    ids=["zero 1", "zero 0", "a tied weight of two stages", "experts", "zero 1 over groups"],
)
def test_gradients_are_reduced_in_buckets_while_the_backward_pass_goes_on(model, plan, run_job, make_job):
    expected = run_job(make_job(model=model, plan={"micro_batch_size": 8})).losses
    batches = {"micro_batch_size": 8 // (plan["dp"] * plan.get("grad_accum_steps", 1))}
    overlapped = run_job(make_job(model=model, plan=plan | batches), SMALL_BUCKETS).losses
    assert difference(overlapped, expected) < TOLERANCE


@pytest.mark.parametrize(
    ("model", "plan"),
    [({}, {"dp": 2, "grad_accum_steps": 2}), (GPT, {"pp": 2, "dp": 2, "grad_accum_steps": 2})],
    ids=["one stage", "a tied weight of two stages"],
)
def test_weights_are_gathered_while_the_forward_pass_goes_on(model, plan, run_job, make_job):
    expected = run_job(make_job(model=model, plan={"micro_batch_size": 8})).losses
    overlapped = run_job(
        make_job(model=model, plan=plan | {"zero_stage": 1, "micro_batch_size": 2}), GATHERS_BESIDE_THE_FORWARD_PASS
    ).losses
    assert difference(overlapped, expected) < TOLERANCE


@pytest.mark.parametrize("change", [{"learning_rate": 1.1e-2}, {"seed": 1}], ids=["learning rate", "seed"])
def test_another_training_has_other_losses(change, run_job, make_job):
    one = run_job(make_job(plan={"micro_batch_size": 8}))
    other = run_job(make_job(plan={"micro_batch_size": 8}, **change))
    assert difference(other.losses, one.losses) > 10 * TOLERANCE
