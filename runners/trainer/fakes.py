"""One rank of a job alone, without its peers, its device or any memory: tensors have shapes, collectives do nothing.

What runs inside of `alone` is the trainer as it is; replaced is only what needs numbers: the talk of neighbouring
stages about shapes, and how many tokens go to each expert. torch's private interfaces (2.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import InferenceMode, _StageBackwardMeta, _StageForwardMeta, _TensorMeta
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshtune.runners.trainer import mixture
from meshtune.runners.trainer.job import Router, TrainerJob
from meshtune.runners.trainer.parallel.context import places_of
from meshtune.runners.trainer.parallel.mesh import ep_rank, place_tensor
from meshtune.runners.trainer.timing.measure import LiveTensors
from meshtune.search_spaces.cluster import DeviceKind

_ATEN = torch.ops.aten
# gloo has no reduce-scatter: it sums a copy of the whole input, which is the argument with this index.
_COPIED_BY_GLOO = {
    torch.ops._c10d_functional.reduce_scatter_tensor.default: 0,
    torch.ops.c10d._reduce_scatter_base_.default: 1,
}
# DTensor finds out shapes with fake tensors of the whole shape, which it would make in a real run as well.
_PLANNING = ContextVar("planning", default=False)


class Sent:
    """A send or receive under way keeps its tensor: gloo's until it is forgotten, NCCL's until it is waited for."""

    def __init__(self, tensor: Tensor, *, until_waited: bool) -> None:
        self._tensor: Tensor | None = tensor
        self._until_waited = until_waited

    def wait(self) -> None:
        if self._until_waited:
            self._tensor = None


class FakeLiveTensors(LiveTensors):  # type: ignore[no-untyped-call]
    """Counts fake tensors by the bytes that real ones would take."""

    def __init__(self, job: TrainerJob) -> None:
        super().__init__()
        self._on_gloo = job.device is DeviceKind.CPU

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _ATEN._grouped_mm.default:  # torch's form of it for fake tensors knows bfloat16 alone
            left, right, ends = args[0], args[1], (kwargs or {}).get("offs", args[2] if len(args) > 2 else None)
            shape = (*([] if right.ndim == 3 else ends.shape), left.shape[0], right.shape[-1])
            return super().__torch_dispatch__(_ATEN.new_empty.default, types, (left, shape))
        if func is _ATEN._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0.0  # no float16 gradient overflows
        if func in _COPIED_BY_GLOO and self._on_gloo:
            scratch = super().__torch_dispatch__(_ATEN.empty_like.default, types, (args[_COPIED_BY_GLOO[func]],))
            del scratch
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _counts(self, tensor: Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and tensor.device.type != "meta" and not _PLANNING.get()


class _OneKernelNorm(torch.autograd.Function):
    """CUDA's RMSNorm by the tensors that it keeps; the CPU's, in steps, keeps some of float32 beside them."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(context: Any, *_: Any) -> tuple[Tensor, Tensor]:
        x, weight, _ = context.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


@contextmanager
def alone(job: TrainerJob, rank: int) -> Iterator[Callable[[], FakeLiveTensors]]:
    """A process group that hears nobody; gives what makes a counter, one for each run. All gone afterwards."""
    replacements = _replacements(job, rank)
    _forget_cached_tensors()
    dist.init_process_group("fake", rank=rank, world_size=job.plan.world_size, store=FakeStore())
    try:
        with ExitStack() as stack:
            for owner, name, value in replacements:
                stack.callback(setattr, owner, name, vars(owner)[name])
                setattr(owner, name, value)
            yield partial(FakeLiveTensors, job)
    finally:
        dist.destroy_process_group()
        _forget_cached_tensors()


def _forget_cached_tensors() -> None:
    """A fake tensor kept for a later real run would be a trap, and a real one counts for nothing here."""
    place_tensor.cache_clear()
    mixture.choose_by_place.cache_clear()
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # it knows meshes by their shape, not by the process groups that are gone


def _replacements(job: TrainerJob, rank: int) -> list[tuple[Any, str, Any]]:
    join = DeviceMesh._concatenate
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    # The tensor that passes between stages for a micro-batch.
    length = job.model.seq_len // job.plan.cp // (job.plan.tp if job.plan.sequence_parallel else 1)
    shape = torch.Size((job.plan.micro_batch_size, length, job.model.hidden))
    boundary = _TensorMeta(shape, (length * shape[2], shape[2], 1), getattr(torch, job.dtype), True)
    gradient = _TensorMeta(boundary.shape, boundary.stride, boundary.dtype, False)

    def join_with_numbers(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():  # it looks for ranks in a tensor
            return join(meshes)

    def warm_up(_: _PipelineSchedule, stages: list[PipelineStage], *__: object) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.DYNAMIC

    def hear(stage: PipelineStage, source: int) -> object:
        return _StageForwardMeta((boundary,)) if source < stage.stage_index else _StageBackwardMeta((gradient,))

    def plan(*arguments: Any) -> Any:
        token = _PLANNING.set(True)
        try:
            return propagate(*arguments)
        finally:
            _PLANNING.reset(token)

    def pass_on(operations: list[dist.P2POp], desc: str | None = None) -> list[Sent]:
        return [Sent(operation.tensor, until_waited=job.device is not DeviceKind.CPU) for operation in operations]

    def norm(module: nn.RMSNorm, x: Tensor) -> Tensor:
        normed: Tensor = _OneKernelNorm.apply(x, module.weight)  # type: ignore[no-untyped-call]
        return normed

    return [
        *[(nn.RMSNorm, "forward", norm)] * (job.device is DeviceKind.CUDA),
        *((mixture, "numbers_of", partial(_numbers_of, numbers)) for numbers in _token_numbers(job, rank)),
        (nn.Module, "to_empty", _to_empty),
        (DeviceMesh, "_concatenate", staticmethod(join_with_numbers)),
        (ShardingPropagator, "_propagate_tensor_meta_non_cached", plan),
        (_PipelineSchedule, "_warmup_p2p", warm_up),
        (schedules, "_batch_p2p", pass_on),
        (PipelineStage, "_recv_meta", hear),
        (PipelineStage, "_send_meta", lambda *_: None),
    ]


def _to_empty(module: nn.Module, *, device: torch.device) -> nn.Module:
    """As torch's, which swaps parameters in place; fake ones that its cache has seen cannot be."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad))
    return module


def _token_numbers(job: TrainerJob, rank: int) -> list[tuple[list[int], ...]]:
    """How many copies of a micro-batch's tokens the rank sends to, and has from, each rank of ep, then how many it
    gathers from each of etp, and where those of each expert here end. Nothing of a dense model."""
    if job.model.experts == 0:
        return []
    plan, width = job.plan, job.plan.expert_tp
    own, here = job.model.experts // plan.ep, ep_rank(plan, rank)
    first = rank - rank % (width * plan.ep)
    columns = range(width) if plan.etp else [rank % width]

    def part(counts: list[int], peer: int) -> list[int]:
        return counts[peer * own : (peer + 1) * own]

    copies = _copies(job, rank)
    sent = [sum(part(copies, peer)) for peer in range(plan.ep)]
    arriving = [
        [part(_copies(job, first + peer * width + column), here) for peer in range(plan.ep)] for column in columns
    ]
    received = [sum(counts) for counts in arriving[rank % width if plan.etp else 0]]
    by_expert = map(sum, zip(*chain.from_iterable(arriving), strict=True))
    return [(sent, received, [sum(map(sum, counts)) for counts in arriving], list(accumulate(by_expert)))]


def _numbers_of(numbers: tuple[list[int], ...], *counts: Tensor) -> list[list[int]]:
    """What `mixture.numbers_of` would answer."""
    return [*numbers[: len(counts)]] if len(counts) > 1 else [numbers[-1]]


def _copies(job: TrainerJob, rank: int) -> list[int]:
    """How many copies of a micro-batch's tokens each expert gets from a rank: as the router skewed gives them, else
    equally many; of copies that experts do not divide, the first have one more."""
    plan, model = job.plan, job.model
    parts = plan.tp if plan.etp else 1
    if job.router is not Router.SKEWED:
        tokens = plan.micro_batch_size * (model.seq_len // (plan.cp * parts))
        each, more = divmod(tokens * model.top_k, model.experts)
        return [each + 1] * more + [each] * (model.experts - more)
    places = places_of(plan, rank // plan.tp % plan.cp, model.seq_len)
    choices = mixture.choose_by_place(places, model.experts, model.top_k, job.imbalance, torch.device("cpu"))
    own = choices.chunk(parts)[rank % parts]
    counts: list[int] = (own.flatten().bincount(minlength=model.experts) * plan.micro_batch_size).tolist()
    return counts
