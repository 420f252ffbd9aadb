"""Shards a chunk of the model over its replicas, then gives every shard its part of the whole. Order matters: meta
device, tensor parallelism, replicas, storage, numbers; so no rank ever holds more than its shards and one parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate  # FSDP2's twin; the public one is DDP's
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from meshtune.runners.trainer.compat import all_gather_single, reduce_scatter_single
from meshtune.runners.trainer.head import GradientSum
from meshtune.runners.trainer.job import TrainerJob
from meshtune.runners.trainer.mixture import ALIGNMENT_BYTES, Experts
from meshtune.runners.trainer.model import Cut, Transformer, initial_values
from meshtune.runners.trainer.parallel.mesh import Mesh
from meshtune.search_spaces.checks import StrEnum
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.recipe import Optimizer as Rule

# Of one reduction, about as Megatron's: large enough for the network's full speed.
BUCKET_ELEMENTS = 40_000_000


class Sharding(StrEnum):
    """How the replicas are kept equal. FLAT is this trainer's own optimizer, the other two are torch's FSDP2."""

    FLAT = "flat"
    REPLICATE = "replicate"
    FULLY_SHARD = "fully_shard"


def choose_sharding(job: TrainerJob) -> Sharding:
    """Stage 0 on CPU goes flat as well: 247 against 320 ms a step at 4 layers of 128 (2 ranks, gloo). On
    accelerators replicate() overlaps its all-reduces as well."""
    if job.plan.dp * job.plan.cp == 1 or job.plan.zero_stage == 1:
        return Sharding.FLAT
    if job.plan.zero_stage == 0:
        return Sharding.FLAT if job.device is DeviceKind.CPU else Sharding.REPLICATE
    return Sharding.FULLY_SHARD


def shard_replicas(model: Transformer, mesh: Mesh, job: TrainerJob, sharding: Sharding) -> None:
    """Wrap every layer, then the rest, with FSDP2; its experts first, over their own replicas. Every reduction is a
    sum."""
    mixed = MixedPrecisionPolicy(param_dtype=getattr(torch, job.dtype), reduce_dtype=torch.float32)
    wrap: Callable[..., object] = partial(fully_shard, mp_policy=mixed, reshard_after_forward=job.plan.zero_stage == 3)
    if sharding is Sharding.REPLICATE:
        wrap = partial(replicate, mp_policy=mixed)
    if mesh.experts is not None:
        for mixture in model.mixtures():
            wrap(mixture.experts, mesh=mesh.experts.replicas)
    for layer in model.layer_list():
        wrap(layer, mesh=mesh.replicas)
    wrap(model, mesh=mesh.replicas)
    if job.prefetch and isinstance(model, FSDPModule):
        layers: list[Any] = list(model.layer_list())
        for index, layer in enumerate(layers):
            layer.set_modules_to_forward_prefetch(layers[index + 1 : index + 1 + job.prefetch])
        # Without streams only a call that returns at once lets gathering go on beside the layer that computes.
        model._set_unshard_async_op(job.device is DeviceKind.CPU)  # type: ignore[no-untyped-call,unused-ignore]
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # gloo has no PREMUL_SUM, which a divide factor alone would ask for.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def materialize(model: Transformer, device: torch.device, seed: int) -> None:
    model.to_empty(device=device)
    if model.rotation is not None:
        model.rotation.make_tables(device)
    model.tie()
    experts = {
        f"{owner}.{name}": module.numbers
        for owner, module in model.named_modules()
        if isinstance(module, Experts)
        for name, _ in module.named_parameters()
    }
    for name, parameter in model.named_parameters():
        cut = model.cuts.get(name)
        shape = cut.shape if cut else parameter.shape
        values = initial_values(model.spec, name, shape, seed, device, experts.get(name, range(0)))
        # FSDP2 cuts what tensor parallelism left.
        local(parameter).copy_(own_part(cut.part(values) if cut else values, parameter))


def own_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of `whole`, cut as FSDP2 has cut `parameter` over its replicas."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    for index, placement in enumerate(parameter.placements):
        if not placement.is_replicate():
            axis = placement.dim  # type: ignore[attr-defined]  # a Shard
            whole = Cut(whole.shape, axis, mesh.get_local_rank(index), mesh.size(index)).part(whole)
    return whole


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def torch_rule(rule: Rule, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """groups: of parameters; of a stage that is frozen an empty one. torch's fused SGD takes no tensors of FSDP2."""
    if rule is Rule.SGD:
        return torch.optim.SGD(groups, lr=learning_rate)
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


def sum_together(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """In place, by one all-reduce, as Megatron's `allreduce_layernorm_grads`. All of one dtype."""
    if tensors:
        joined = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(joined, group=group)
        parts = torch.split(joined, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


class ShardedAdamW:
    """AdamW, or another rule, on parameters that FSDP2 keeps: gradients arrive reduced, cut as the parameters are.

    partial_gradients: of which each rank of `peers` has a part."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        learning_rate: float,
        rule: Rule,
        *,
        partial_gradients: Sequence[nn.Parameter],
        peers: dist.ProcessGroup,
    ) -> None:
        self._partial_gradients, self._peers = partial_gradients, peers
        # One fused update takes parameters of one mesh only: dense ones and experts lie on others.
        groups: dict[object, list[nn.Parameter]] = {None: []}
        for parameter in parameters:
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            groups.setdefault(mesh, []).append(parameter)
        self._rule = torch_rule(rule, [{"params": group} for group in groups.values()], learning_rate)

    def begin_step(self) -> None:
        self._rule.zero_grad()

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            raise RuntimeError("a weight whose gradient is to be summed got none")
        return local(parameter.grad)

    def reduce(self) -> list[Tensor]:
        sum_together([self.gradient(parameter) for parameter in self._partial_gradients], self._peers)
        return [local(p.grad) for group in self._rule.param_groups for p in group["params"] if p.grad is not None]

    def reduced(self, parameter: nn.Parameter) -> tuple[Tensor, int]:
        assert isinstance(parameter, DTensor)  # FSDP2 keeps it
        sizes = zip(parameter.placements, parameter.device_mesh.shape, strict=True)
        part = parameter.new_zeros(()) if parameter.grad is None else parameter.grad
        return local(part), prod(size for placement, size in sizes if placement.is_replicate())

    def update(self) -> None:
        self._rule.step()


class DenseAndExpertAdamW:
    """One optimizer for the dense parameters and one for the experts, whose replicas are other ranks
    (DeepSpeed-TED)."""

    def __init__(self, dense: FlatAdamW, experts: FlatAdamW) -> None:
        self._dense, self._experts = dense, experts

    @property
    def gathers_ahead(self) -> bool:
        return self._dense.gathers_ahead and self._experts.gathers_ahead

    def begin_step(self) -> None:
        self._dense.begin_step()
        self._experts.begin_step()

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        return (self._dense if parameter in self._dense else self._experts).gradient(parameter)

    def sum_of(self, parameter: nn.Parameter) -> GradientSum:
        return self._dense.sum_of(parameter)

    def reduce(self) -> list[Tensor]:
        return [*self._dense.reduce(), *self._experts.reduce()]

    def reduced(self, parameter: nn.Parameter) -> tuple[Tensor, int]:
        return (self._dense if parameter in self._dense else self._experts).reduced(parameter)

    def update(self) -> None:
        self._dense.update()
        self._experts.update()

    def await_weights(self, part: nn.Module) -> None:
        self._dense.await_weights(part)
        self._experts.await_weights(part)


@dataclass(eq=False, slots=True, kw_only=True)
class _Bucket:
    """Parameters whose gradients are reduced by one call, and whose weights are gathered by one.

    span: of the flat buffers; own: this replica's part of it. master: the weights that AdamW moves, with the sums as
    gradient once they are begun. partial: the sums over the replicas are to be summed over the peers. late: not before
    `reduce`. missing: how many gradients of this step its parameters still wait for. reducing, gathering: what is under
    way."""

    parameters: tuple[nn.Parameter, ...]
    span: slice
    own: slice
    master: nn.Parameter
    partial: bool
    late: bool
    missing: int = 0
    reducing: dist.Work | None = None
    gathering: dist.Work | None = None


class FlatAdamW:
    """AdamW, or another rule, on one flat buffer of all parameters that this rank trains, cut into buckets.

    Unsharded (ZeRO 0): all-reduce, AdamW on everything. Sharded (ZeRO 1): reduce-scatter, AdamW on this replica's
    part of each bucket, all-gather; over groups of ranks an all-reduce of that part between the groups, which begins
    with the next bucket's reduce-scatter. Gradients are added to a flat buffer as the backward pass makes them, the
    first of a step overwriting it (the head's as the loss makes it: `sum_of`), and a bucket is reduced while the last
    micro-batch's backward pass goes on, as in Megatron's distributed optimizer. Not so with split backward passes,
    where torch sums a step's gradients itself, in the model's number format. Weights are
    gathered while the next step's forward pass goes on (Megatron's --overlap-param-gather): `await_weights`, which each
    chunk of the model calls before it computes with a part of itself, waits for those of that part.

    replicas: their group; or those of the rank's part, one of each group, and its own group. backward_passes: of a
    step. gather_ahead: else all weights are gathered before the forward pass. late: parameters
    whose gradients are changed after the backward pass.
    partial_gradients: those of whose gradient each rank of `peers` has a part, summed once a step; none of them is
    late."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        learning_rate: float,
        replicas: Sequence[dist.ProcessGroup],
        *,
        shard: bool,
        backward_passes: int,
        late: frozenset[nn.Parameter] = frozenset(),
        partial_gradients: Sequence[nn.Parameter] = (),
        peers: dist.ProcessGroup | None = None,
        gather_ahead: bool = True,
        rule: Rule = Rule.ADAMW,
    ) -> None:
        self.gathers_ahead = gather_ahead
        count, rank = replicas[-1].size(), replicas[-1].rank()
        self._peers = peers
        several = [group for group in replicas if group.size() > 1]
        self._replicas = several.pop() if several else None
        self._copies = several.pop() if several else None
        self._sharded = shard and count > 1
        self._backward_passes = backward_passes
        self._spans: dict[nn.Parameter, slice] = {}
        self._sums: dict[nn.Parameter, GradientSum] = {}
        self._bucket_of: dict[nn.Parameter, _Bucket] = {}
        # The last parameters get their gradients first. All replicas start buckets in this order.
        partial = frozenset(partial_gradients)
        early = [parameter for parameter in reversed(parameters) if parameter not in late | partial]
        groups = [
            *_cut_buckets(early),
            *_cut_buckets([parameter for parameter in reversed(parameters) if parameter in partial]),
            *([parameter] for parameter in parameters if parameter in late),
        ]
        # So that every bucket begins where torch's grouped products can read it, and has equal parts.
        like = parameters[0] if parameters else torch.zeros(0)  # of a stage that is frozen
        whole = lcm(count, ALIGNMENT_BYTES // like.element_size())
        total, spans = 0, []
        for group in groups:
            start = total
            for parameter in group:
                self._spans[parameter] = slice(total, total + parameter.numel())
                total += parameter.numel()
            total += -total % whole
            spans.append(slice(start, total))
        self._weights = torch.zeros(total, dtype=like.dtype, device=like.device)
        self._gradients = torch.zeros_like(self._weights, dtype=torch.float32)
        for parameter in parameters:
            # Its storage moves into the flat buffer, and its gradients are caught from now on.
            view = self._weights[self._spans[parameter]].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            self._sums[parameter] = GradientSum(self._gradients[self._spans[parameter]].view(parameter.shape))
            parameter.register_post_accumulate_grad_hook(self._collect)  # type: ignore[no-untyped-call]
        self._buckets = []
        for group, span in zip(groups, spans, strict=True):
            width = (span.stop - span.start) // count
            first = span.start + rank * width
            own = slice(first, first + width) if self._sharded else span
            master = nn.Parameter(self._weights[own].float())
            bucket = _Bucket(
                parameters=tuple(group),
                span=span,
                own=own,
                master=master,
                partial=group[0] in partial,
                late=group[0] in late,
            )
            self._buckets.append(bucket)
            self._bucket_of |= dict.fromkeys(group, bucket)
        # In float32 the master copy is the weights themselves.
        self._has_copy = self._weights.dtype is not torch.float32
        # Whether other replicas' parts of the weights are those of the last step.
        self._stale = False
        self._scattering: _Bucket | None = None
        self._buckets_of: dict[nn.Module, tuple[_Bucket, ...]] = {}
        masters = [bucket.master for bucket in self._buckets]
        self._rule = torch_rule(rule, [{"params": masters}], learning_rate)

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return parameter in self._spans

    def begin_step(self) -> None:
        """Forget the gradients of the last step, and begin to gather its weights, the first layers' first. Collective
        over the replicas."""
        if self._stale:
            self._gather()
        for gradient_sum in self._sums.values():
            gradient_sum.empty = True
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters) * self._backward_passes
            bucket.master.grad = None
            for parameter in bucket.parameters:
                parameter.grad = None

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """A view of the flat buffer, to be changed in place between the backward pass and `reduce`, where the parameter
        is late."""
        own = self._sums[parameter]
        if parameter.grad is not None:
            own.add(parameter.grad)
            parameter.grad = None
        elif own.empty:
            own.add(torch.zeros((), device=own.total.device))
        return own.total

    def sum_of(self, parameter: nn.Parameter) -> GradientSum:
        return self._sums[parameter]

    def reduce(self) -> list[Tensor]:
        """Sum the gradients over the replicas; return those that this rank's part of `update` goes by, to be changed in
        place. Collective."""
        for bucket in self._buckets:
            if bucket.master.grad is None:
                for parameter in bucket.parameters:
                    self.gradient(parameter)
                self._start(bucket)
        self._sum_copies()
        for bucket in self._buckets:
            if bucket.reducing is not None:
                bucket.reducing.wait()
                bucket.reducing = None
            if bucket.partial:
                dist.all_reduce(bucket.master.grad, group=self._peers)
        return [bucket.master.grad for bucket in self._buckets if bucket.master.grad is not None]

    def reduced(self, parameter: nn.Parameter) -> tuple[Tensor, int]:
        """Between `reduce` and `update`: what of a gradient this rank's update goes by, maybe nothing, and how many
        replicas go by the same."""
        bucket, span = self._bucket_of[parameter], self._spans[parameter]
        own, gradient = bucket.own, bucket.master.grad
        assert gradient is not None  # it has been reduced
        start, stop = max(span.start, own.start), min(span.stop, own.stop)
        part = gradient[start - own.start : max(start, stop) - own.start]
        same = self._copies if self._sharded else self._replicas
        return part, 1 if same is None else same.size()

    def update(self) -> None:
        """Move the weights, of ZeRO 1 this replica's part: `begin_step` gathers the others."""
        self._rule.step()
        for bucket in self._buckets:
            bucket.master.grad = None
            if self._has_copy:
                self._weights[bucket.own].copy_(bucket.master.detach())
        self._stale = self._sharded

    def _gather(self) -> None:
        for bucket in reversed(self._buckets):
            # In place: NCCL knows this form, and gloo gathers into a buffer of its own.
            whole, own = self._weights[bucket.span], self._weights[bucket.own]
            bucket.gathering = all_gather_single(whole, own, group=self._replicas, async_op=True)
        if not self.gathers_ahead:
            self._await(self._buckets)
        self._stale = False

    def await_weights(self, part: nn.Module) -> None:
        """Wait until the weights of this part of the model have been gathered."""
        if part not in self._buckets_of:
            buckets = (self._bucket_of.get(parameter) for parameter in part.parameters())
            self._buckets_of[part] = tuple(dict.fromkeys(bucket for bucket in buckets if bucket is not None))
        self._await(self._buckets_of[part])

    def _await(self, buckets: Iterable[_Bucket]) -> None:
        for bucket in buckets:
            if bucket.gathering is not None:
                bucket.gathering.wait()
                bucket.gathering = None

    def _start(self, bucket: _Bucket) -> None:
        """Sum the gradients over the replicas."""
        gradients = self._gradients[bucket.span]
        bucket.master.grad = torch.empty_like(bucket.master) if self._sharded else gradients
        if self._sharded:
            bucket.reducing = reduce_scatter_single(bucket.master.grad, gradients, group=self._replicas, async_op=True)
            self._sum_copies()
            self._scattering = bucket
        elif self._replicas is not None:
            bucket.reducing = dist.all_reduce(gradients, group=self._replicas, async_op=True)

    def _sum_copies(self) -> None:
        """Begin to sum the last bucket's part over the groups, once this one has it."""
        bucket, self._scattering = self._scattering, None
        if bucket is not None and bucket.reducing is not None and self._copies is not None:
            bucket.reducing.wait()
            bucket.reducing = dist.all_reduce(bucket.master.grad, group=self._copies, async_op=True)

    def _collect(self, parameter: Tensor) -> None:
        if not isinstance(parameter, nn.Parameter):
            return
        self.gradient(parameter)  # which has none where it has been added already
        self._bucket_of[parameter].missing -= 1
        for bucket in self._buckets:
            if bucket.missing or bucket.late:
                return
            if bucket.master.grad is None:
                self._start(bucket)


def _cut_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """In their order, each as large as BUCKET_ELEMENTS with its last parameter."""
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        if room <= 0:
            buckets.append([])
            room = BUCKET_ELEMENTS
        buckets[-1].append(parameter)
        room -= parameter.numel()
    return buckets


Optimizer = ShardedAdamW | DenseAndExpertAdamW | FlatAdamW
