"""A Trainer takes optimizer steps of one model under one plan, on one rank of many. Same global batch and same sums
whatever the plan. Synthetic data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshtune.runners.trainer.compiling import compile_layers
from meshtune.runners.trainer.failure import Phase, Progress
from meshtune.runners.trainer.float8 import compute_in_float8
from meshtune.runners.trainer.job import Dtype, TrainerJob
from meshtune.runners.trainer.mixture import Mixture
from meshtune.runners.trainer.model import Transformer, stream
from meshtune.runners.trainer.parallel.context import places_of, spread_attention
from meshtune.runners.trainer.parallel.mesh import Mesh, build_tie_group, ep_rank, place_tensor
from meshtune.runners.trainer.parallel.pipeline import AccumulatingLoop, Pipeline, note_passes, stages_of
from meshtune.runners.trainer.parallel.sharding import (
    DenseAndExpertAdamW,
    FlatAdamW,
    Optimizer,
    ShardedAdamW,
    Sharding,
    choose_sharding,
    materialize,
    shard_replicas,
)
from meshtune.runners.trainer.parallel.tensor import fold_experts, shard_tensors
from meshtune.search_spaces.plan import Recompute, Schedule, Selective
from meshtune.search_spaces.stages import layers_of_chunk

# As torch.amp.GradScaler's. Megatron begins at 2**32 and comes down.
INITIAL_FACTOR = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_INTERVAL = 2000


class LossScaler:
    """factor: what the loss is multiplied by for the backward pass, equal on all ranks. Halved after a step whose
    gradients are not finite, doubled after 2000 in a row whose gradients are. skipped: how many moved no weight."""

    def __init__(self, device: torch.device) -> None:
        self.factor, self.skipped = INITIAL_FACTOR, 0
        self._device, self._finite_in_a_row = device, 0

    def unscale(self, gradients: list[Tensor]) -> bool:
        """Divide the gradients by the factor in place; return whether those of all ranks are finite, else the step must
        be skipped. Then adjust the factor. Collective over all ranks, and waits for the device, as Megatron does."""
        overflow = torch.zeros((), device=self._device)
        reciprocal = torch.full((), 1 / self.factor, device=self._device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, reciprocal)
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
        if overflow.item():
            self.skipped += 1
            self.factor, self._finite_in_a_row = self.factor * BACKOFF, 0
            return False
        self._finite_in_a_row += 1
        if self._finite_in_a_row == GROWTH_INTERVAL:
            self.factor, self._finite_in_a_row = self.factor * GROWTH, 0
        return True


_ATEN, _COLLECTIVES = torch.ops.aten, torch.ops._c10d_functional
# Matrix products, the fused attention kernels, and collectives. All-gathers are not among them: their results are as
# many times larger than what this rank holds as there are ranks, so they are repeated (Korthikanti et al., 4.2.2).
_KEPT = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.bmm.default,
        _ATEN._grouped_mm.default,
        _ATEN._scaled_mm.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
        _ATEN._scaled_dot_product_fused_attention_overrideable.default,  # on XPU
        _COLLECTIVES.reduce_scatter_tensor.default,
        _COLLECTIVES.all_reduce.default,
        _COLLECTIVES.all_to_all_single.default,
    }
)


# Products with a weight, of which a layer has those of its projections. The attention kernel `math` has others (bmm).
_OF_WEIGHTS = frozenset({_ATEN.mm.default, _ATEN.addmm.default, _ATEN._grouped_mm.default, _ATEN._scaled_mm.default})


def recompute_layers(model: Transformer, kind: Recompute, interval: int, selective: Selective) -> None:
    """Let every `interval`-th layer of the whole model, counted from layer 0, recompute (Chen et al. 2016).

    full: all but the layer's input. selective: see Selective; of a mixture of experts, products are repeated inside of
    attention and inside of the experts. Split backward passes run full twice, and selective not at all."""
    if kind is Recompute.NONE:
        return
    # There is no dropout, so no random state to restore.
    run = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    by_product = kind is Recompute.SELECTIVE and selective is not Selective.ATTENTION
    if by_product:
        run = partial(run, context_fn=_CONTEXTS[selective])
    for index, layer in zip(model.layers, model.layer_list(), strict=True):
        if int(index) % interval:
            continue
        if kind is Recompute.SELECTIVE and not by_product:
            layer.attention.attend = partial(run, layer.attention.attend)
        elif by_product and isinstance(layer.feed_forward, Mixture):
            # FSDP2 may wrap the experts on their own; what it does there must not be recorded (it differs next time).
            layer.recompute_attention = run
            layer.feed_forward.experts.recompute = run
        else:
            layer.recompute = run


def _policy(_: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts_of_halves() -> Any:
    """Of the products with a weight the first is kept, the second not, and so on (torchtitan 0.3.0,
    distributed/activation_checkpoint.py). torch before 2.13 asks the policy again while it recomputes."""
    counts = {False: 0, True: 0}

    def policy(context: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
        if operation in _OF_WEIGHTS:
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return _policy(context, operation)

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]  # it has no annotations


_CONTEXTS: Mapping[Selective, Callable[[], Any]] = {
    Selective.PRODUCTS: partial(create_selective_checkpoint_contexts, _policy),
    Selective.HALF_PRODUCTS: _contexts_of_halves,
}


def selective_kind(model: Transformer) -> Selective | None:
    """What of its first layer is computed again; None for all of it, or nothing."""
    layer = model.layer_list()[0]
    if isinstance(layer.attention.attend, partial):
        return Selective.ATTENTION
    run: Any = layer.recompute or layer.recompute_attention
    return next((kind for kind, own in _CONTEXTS.items() if run and run.keywords.get("context_fn") is own), None)


def build_chunk(job: TrainerJob, mesh: Mesh, device: torch.device, sharding: Sharding, stage: int) -> Transformer:
    """One stage's layers, cut in every way the plan asks for."""
    plan, spec = job.plan, job.model
    stages, peer = plan.pp * plan.vpp, ep_rank(plan, dist.get_rank())
    # Not made in float32 and converted: fake tensors (see exact) do not convert a module's parameters.
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, job.dtype) if sharding is Sharding.FLAT else torch.float32)
    with torch.device("meta"), ExitStack() as stack:
        stack.callback(torch.set_default_dtype, before)
        model = Transformer(
            spec,
            layers_of_chunk(plan, spec.layers, stage),
            first=stage == 0,
            last=stage == stages - 1,
            places=places_of(plan, mesh.cp.get_local_rank(), spec.seq_len),
            experts=range(peer * spec.experts // plan.ep, (peer + 1) * spec.experts // plan.ep),
            router=job.router,
            imbalance=job.imbalance,
            rows=spec.vocab_rows(plan.tp) * plan.tp,
        )
        if adapter := job.recipe.adapter:
            for layer in model.layer_list():
                layer.adapt(spec, adapter)
    if mesh.experts is not None:
        for mixture in model.mixtures():
            mixture.peers = mesh.experts.ep.get_group()
        if plan.etp:
            fold_experts(model, mesh.tp, mesh.experts.etp)
    if plan.tp > 1:
        shard_tensors(model, mesh.tp, sequence_parallel=plan.sequence_parallel)
    model.freeze(job.recipe, getattr(torch, job.dtype))
    if plan.cp > 1:
        spread_attention(model, mesh.cp, plan.context)
    if job.float8:
        compute_in_float8(model, device)
    if model.head is not None:
        model.head.chunks = job.loss_chunks
    recompute_layers(model, plan.recompute, plan.recompute_interval, job.selective)
    compile_layers(model, job, mesh.tp.get_group())
    if sharding is not Sharding.FLAT:
        shard_replicas(model, mesh, job, sharding)
    materialize(model, device, job.seed)
    return model


def build_optimizer(job: TrainerJob, mesh: Mesh, models: Sequence[Transformer], sharding: Sharding) -> Optimizer:
    parameters = [weight for model in models for _, weight in model.trained()]
    partly = [weight for model in models for name, weight in model.trained() if name in model.partial_gradients]
    if sharding is not Sharding.FLAT:
        peers = mesh.tp.get_group()
        return ShardedAdamW(parameters, job.learning_rate, job.recipe.optimizer, partial_gradients=partly, peers=peers)
    flat = partial(
        FlatAdamW,
        learning_rate=job.learning_rate,
        shard=job.plan.zero_stage >= 1,
        backward_passes=job.plan.grad_accum_steps,
        late=frozenset(weight for model in models if (weight := model.shared_with_another_stage()) is not None),
        gather_ahead=job.gather_ahead,
        rule=job.recipe.optimizer,
    )
    replicas, peers = mesh.replicas.get_all_groups(), mesh.tp.get_group()
    dense_flat = partial(flat, partial_gradients=partly, peers=peers, replicas=replicas)
    if mesh.experts is None:
        return dense_flat(parameters)
    known = {p for model in models for mixture in model.mixtures() for p in mixture.experts.parameters()}
    experts = [parameter for parameter in parameters if parameter in known]
    dense = [parameter for parameter in parameters if parameter not in known]
    return DenseAndExpertAdamW(dense_flat(dense), flat(experts, replicas=mesh.experts.replicas.get_all_groups()))


class Trainer:
    """Collective throughout: all ranks build it, and all take the same steps."""

    def __init__(
        self, job: TrainerJob, mesh: Mesh, device: torch.device, progress: Progress, sharding: Sharding | None = None
    ) -> None:
        sharding = choose_sharding(job) if sharding is None else sharding
        self._job, self._mesh, self._device, self._progress = job, mesh, device, progress
        stages = stages_of(job.plan, mesh.pipeline_rank)
        models = [build_chunk(job, mesh, device, sharding, stage) for stage in stages]
        self.optimizer = build_optimizer(job, mesh, models, sharding)
        if not isinstance(self.optimizer, ShardedAdamW):
            for model in models:
                model.await_weights = self.optimizer.await_weights
                # torch's pipelines first run a stage on arbitrary numbers, for the shapes: no loss to add anything of.
                if model.head is not None and model.head.weight.requires_grad and job.plan.pp == 1:
                    model.head.gradient_sum = self.optimizer.sum_of(model.get_parameter("head.weight"))
        self._scaler = LossScaler(device) if job.dtype is Dtype.FLOAT16 else None
        note_passes(models, progress)
        self._passes = (
            Pipeline(models, job.plan, mesh, device) if job.plan.pp > 1 else AccumulatingLoop(models[0], job.plan)
        )
        self._places = models[0].places
        self._models = models
        # Whether a step keeps what `global_gradient_norm` needs of its gradient.
        self.keeps_norm = False
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self._tied = [weight for model in models if (weight := model.shared_with_another_stage()) is not None]
        # In a V both copies are on one rank; else they are on the first and the last.
        ties_ranks = job.plan.pp > 1 and job.model.tied_head and job.plan.schedule is not Schedule.ZBV
        self._tie_group = build_tie_group(job.plan, mesh) if ties_ranks else None

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for model in self._models for parameter in model.parameters()]

    @property
    def first_chunk(self) -> Transformer:
        """Of this rank."""
        return self._models[0]

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This replica's tokens and targets of one step, at the places that this rank holds. The global batch is a
        function of the seed and the step alone."""
        generator = torch.Generator().manual_seed(stream(self._job.seed, step))
        shape = (self._job.plan.global_batch_size, self._job.model.seq_len + 1)
        whole = torch.randint(0, self._job.model.vocab, shape, generator=generator)
        own = whole.chunk(self._job.plan.dp)[self._mesh.replica].to(self._device)
        places = place_tensor(self._places, self._device)
        return own[:, places], own[:, places + 1]

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """One optimizer step; returns this rank's share of the loss, still on the device."""
        self._progress.phase = Phase.FORWARD
        self.optimizer.begin_step()
        factor = 1.0 if self._scaler is None else self._scaler.factor
        self._scale_losses(factor)
        loss = self._passes.run(tokens, targets)
        self._progress.phase = Phase.OPTIMIZER
        self._sum_tied()
        gradients = self.optimizer.reduce()
        finite = self._scaler is None or self._scaler.unscale(gradients)
        if self.keeps_norm:
            self._squares = self._own_squares()
        if finite:
            self.optimizer.update()
        return loss / factor

    @property
    def skipped_steps(self) -> int:
        """Those whose gradients were not finite, so that the weights stayed: of float16 alone."""
        return 0 if self._scaler is None else self._scaler.skipped

    def _scale_losses(self, factor: float) -> None:
        """Let heads return the sum over a micro-batch, divided by the tokens of the whole step, times the factor."""
        for model in self._models:
            if model.head is not None:
                model.head.loss_scale = factor / (self._job.plan.global_batch_size * self._job.model.seq_len)

    def _sum_tied(self) -> None:
        """Both copies of a tied weight get the sum of their gradients and stay equal."""
        gradients = [self.optimizer.gradient(weight) for weight in self._tied]
        if len(gradients) == 2:
            gradients[0].add_(gradients[1])
            gradients[1].copy_(gradients[0])
        elif gradients and self._tie_group is not None:
            dist.all_reduce(gradients[0], group=self._tie_group)

    def _own_squares(self) -> Tensor:
        """This rank's share of the squares of the whole gradient: what other ranks have as well counts in part."""
        shares = [torch.zeros((), dtype=torch.float64, device=self._device)]  # a stage may be frozen
        for model in self._models:
            tied = model.shared_with_another_stage()
            for name, weight in model.trained():
                part, replicas = self.optimizer.reduced(weight)
                copies = replicas * (1 if name in model.cuts else self._job.plan.tp) * (2 if weight is tied else 1)
                shares.append(torch.linalg.vector_norm(part).double().square() / copies)
        return torch.stack(shares).sum()

    def global_gradient_norm(self) -> float:
        """Of the last step that kept it: of the gradient of the mean loss over the global batch. Collective."""
        dist.all_reduce(self._squares)
        return float(self._squares.sqrt().item())

    def global_loss(self, loss: Tensor) -> float:
        """The mean loss over the global batch, from the shares of all ranks. Collective."""
        total = loss.double()
        for group in (*self._mesh.replicas.get_all_groups(), self._mesh.pp.get_group()):
            dist.all_reduce(total, group=group)
        return float(total.item())
