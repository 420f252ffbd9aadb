"""One rank of a job alone, without its peers, its device or any memory: tensors have shapes, collectives do nothing.

What runs inside of `alone` is the trainer as it is; replaced is only what needs numbers: the talk of neighbouring
stages about shapes, and how many tokens go to each expert. torch's private interfaces (2.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import InferenceMode, _StageBackwardMeta, _StageForwardMeta, _TensorMeta
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshtune.runners.trainer.job import Job
from meshtune.runners.trainer.model import place_tensor, rotation
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
    """Counts fake tensors by the bytes that real ones would take, and sends experts equal shares."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        plan, model = job.plan, job.model
        # With equal shares every expert gets as many copies from each rank, so all ranks of ep send and receive alike.
        self._copies = plan.micro_batch_size * (model.seq_len // plan.cp) * model.top_k
        self._on_gloo = job.device is DeviceKind.CPU
        self._share = self._copies // model.experts if model.experts else 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _ATEN._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return self._share  # the only numbers of tensors that the trainer looks at are counts of tokens
        if func is _ATEN.bincount.default:
            return super().__torch_dispatch__(_ATEN.new_empty.default, types, (args[0], [args[2]]))
        if func is _ATEN.repeat_interleave.Tensor:
            return super().__torch_dispatch__(_ATEN.new_empty.default, types, (args[0], [self._copies]))
        if func in _COPIED_BY_GLOO and self._on_gloo:
            scratch = super().__torch_dispatch__(_ATEN.empty_like.default, types, (args[_COPIED_BY_GLOO[func]],))
            del scratch
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _counts(self, tensor: Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and tensor.device.type != "meta" and not _PLANNING.get()


@contextmanager
def alone(job: Job, rank: int) -> Iterator[Callable[[], FakeLiveTensors]]:
    """A process group that hears nobody; gives what makes a counter, one for each run. All gone afterwards."""
    _forget_cached_tensors()
    dist.init_process_group("fake", rank=rank, world_size=job.plan.world_size, store=FakeStore())
    try:
        with ExitStack() as stack:
            for owner, name, value in _replacements(job):
                stack.enter_context(_replaced(owner, name, value))
            yield partial(FakeLiveTensors, job)
    finally:
        dist.destroy_process_group()
        _forget_cached_tensors()


def without_numbers() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _forget_cached_tensors() -> None:
    """A fake tensor kept for a later real run would be a trap, and a real one counts for nothing here."""
    place_tensor.cache_clear()
    rotation.cache_clear()
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # it knows meshes by their shape, not by the process groups that are gone


def _replacements(job: Job) -> list[tuple[Any, str, Any]]:
    join = DeviceMesh._concatenate
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    boundary = _boundary(job)
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
        return [Sent(operation.tensor, until_waited=job.device is DeviceKind.CUDA) for operation in operations]

    def say(_: PipelineStage, __: object, ___: int) -> None:
        pass

    return [
        (nn.Module, "to_empty", _to_empty),
        (DeviceMesh, "_concatenate", staticmethod(join_with_numbers)),
        (ShardingPropagator, "_propagate_tensor_meta_non_cached", plan),
        (_PipelineSchedule, "_warmup_p2p", warm_up),
        (schedules, "_batch_p2p", pass_on),
        (PipelineStage, "_recv_meta", hear),
        (PipelineStage, "_send_meta", say),
    ]


def _to_empty(module: nn.Module, *, device: torch.device) -> nn.Module:
    """As torch's, which swaps parameters in place; fake ones that its cache has seen cannot be."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.empty_like(parameter, device=device)))
    return module


def _boundary(job: Job) -> _TensorMeta:
    """The tensor that passes between stages for a micro-batch."""
    plan, model = job.plan, job.model
    length = model.seq_len // plan.cp // (plan.tp if plan.sequence_parallel else 1)
    shape = torch.Size((plan.micro_batch_size, length, model.hidden))
    return _TensorMeta(shape, (length * model.hidden, model.hidden, 1), getattr(torch, job.dtype), True)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
