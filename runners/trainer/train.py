"""A Trainer takes optimizer steps of one model under one plan, on one rank of many.

Same global batch and same sums whatever the plan: the loss is divided by the tokens of the whole step at once, and
every reduction after that is a sum. Synthetic data: speed is measured here, nothing is learned.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from runners.trainer.failure import Phase, Progress
from runners.trainer.job import Job
from runners.trainer.mesh import Mesh, build_tie_group
from runners.trainer.model import Transformer, stream
from runners.trainer.optimizer import FlatAdamW, Optimizer, ShardedAdamW
from runners.trainer.parallel import Sharding, choose_sharding, local, materialize, shard_replicas, shard_tensors
from runners.trainer.pipeline import AccumulatingLoop, LossFunction, Passes, Pipeline, cut_layers, note_passes


def synthetic_batch(job: Job, step: int) -> Tensor:
    """The global batch of one step, (sequences, seq_len + 1) token ids: a function of the seed and the step alone."""
    generator = torch.Generator().manual_seed(stream(job.seed, step))
    shape = (job.plan.global_batch_size, job.model.seq_len + 1)
    return torch.randint(0, job.model.vocab, shape, generator=generator)


def build_model(job: Job, mesh: Mesh, device: torch.device, sharding: Sharding) -> Transformer:
    """This rank's shards of its stage, with their initial numbers."""
    plan, spec = job.plan, job.model
    layers = cut_layers(spec.layers, plan.pp, mesh.stage)
    with torch.device("meta"):
        model = Transformer(spec, layers, first=mesh.is_first_stage, last=mesh.is_last_stage)
    if sharding is Sharding.FLAT:
        model = model.to(getattr(torch, job.dtype))
    if plan.tp > 1:
        shard_tensors(model, mesh.tp)
    if sharding is not Sharding.FLAT:
        shard_replicas(model, mesh.dp, job, sharding)
    materialize(model, device, job.seed)
    return model


def build_optimizer(job: Job, mesh: Mesh, model: Transformer, sharding: Sharding) -> Optimizer:
    parameters = list(model.parameters())
    if sharding is Sharding.FLAT:
        shard = job.plan.zero_stage >= 1
        return FlatAdamW(parameters, job.learning_rate, mesh.dp.get_group(), shard=shard)
    return ShardedAdamW(parameters, job.learning_rate)


def build_loss(job: Job, mesh: Mesh) -> LossFunction:
    """Cross entropy summed over a micro-batch, divided by the tokens of the whole step."""
    tokens_per_step = job.plan.global_batch_size * job.model.seq_len

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        if job.plan.tp > 1:
            shape = torch.Size((*targets.shape, job.model.vocab))
            stride = (shape[1] * shape[2], shape[2], 1)
            logits = DTensor.from_local(logits, mesh.tp, [Shard(-1)], run_check=False, shape=shape, stride=stride)
        total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        return local(total) / tokens_per_step

    return loss


class Trainer:
    """Collective throughout: all ranks build it, and all take the same steps."""

    def __init__(
        self, job: Job, mesh: Mesh, device: torch.device, progress: Progress, sharding: Sharding | None = None
    ) -> None:
        sharding = choose_sharding(job) if sharding is None else sharding
        self._job, self._mesh, self._device, self._progress = job, mesh, device, progress
        model = build_model(job, mesh, device, sharding)
        self._optimizer = build_optimizer(job, mesh, model, sharding)
        loss = note_passes(model, build_loss(job, mesh), progress)
        self._passes: Passes = (
            Pipeline(model, job.plan, mesh, loss, device)
            if job.plan.pp > 1
            else AccumulatingLoop(model, job.plan, loss)
        )
        self._tied: tuple[nn.Parameter, dist.ProcessGroup] | None = None
        if job.plan.pp > 1 and job.model.tied_head:
            group, weight = build_tie_group(job.plan, mesh), model.shared_with_another_stage()
            if group is not None and weight is not None:
                self._tied = weight, group

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This replica's tokens and targets of one step."""
        whole = synthetic_batch(self._job, step)
        own = whole.chunk(self._job.plan.dp)[self._mesh.replica].to(self._device)
        return own[:, :-1].contiguous(), own[:, 1:].contiguous()

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """One optimizer step; returns this rank's share of the loss, still on the device."""
        self._progress.phase = Phase.FORWARD
        self._optimizer.clear()
        sharded_loss: AbstractContextManager[None] = loss_parallel() if self._job.plan.tp > 1 else nullcontext()
        with sharded_loss:
            loss = self._passes.run(tokens, targets)
        self._progress.phase = Phase.OPTIMIZER
        if self._tied is not None:
            weight, group = self._tied
            # Both copies get the sum and stay equal. Before the replicas' sum or after it is the same, up to rounding.
            dist.all_reduce(self._optimizer.gradient(weight), group=group)
        self._optimizer.step()
        return loss

    def global_loss(self, loss: Tensor) -> float:
        """The mean loss over the global batch, from the shares of all ranks. Collective."""
        total = loss.double()
        for axis in (self._mesh.dp, self._mesh.pp):
            dist.all_reduce(total, group=axis.get_group())
        return float(total.item())
