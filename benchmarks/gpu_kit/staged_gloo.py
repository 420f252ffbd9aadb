"""gloo for several processes on one CUDA device: every collective is copied to the CPU, run there, and copied back.

NCCL refuses two ranks on one device, and gloo itself takes CUDA tensors for a few collectives only. Slow, and right:
for comparing losses, not for timing. On CPU tensors it runs the same way, so that it is tested without a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed import distributed_c10d
from torch.futures import Future

from meshtune.runners.trainer.compat import _create as create_gloo

BACKEND = "staged_gloo"


def use_for_everything() -> None:
    """Let `init_process_group` make this backend, whichever it is asked for."""
    dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])
    init = dist.init_process_group

    def init_staged(_: str, *arguments: Any, **options: Any) -> None:
        init(BACKEND, *arguments, **options)

    dist.init_process_group = init_staged


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> StagedGloo:
    return StagedGloo(rank, size, create_gloo(store, rank, size, timeout))


def _host(tensors: Any) -> Any:
    """Contiguous copies in the CPU's memory, in the same nesting; the copy waits for the device."""
    if isinstance(tensors, Tensor):
        return tensors.detach().contiguous().cpu().clone()
    return [_host(each) for each in tensors]


def _give_back(tensors: Any, copies: Any) -> None:
    if isinstance(tensors, Tensor):
        with torch.no_grad():
            tensors.copy_(copies)
        return
    for each, copy in zip(tensors, copies, strict=True):
        _give_back(each, copy)


class Sent(dist._Work):
    """A message under way; keeps its copy alive."""

    def __init__(self, work: Any, copies: Any, tensors: Any = ()) -> None:
        super().__init__()
        self._work, self._copies, self._tensors = work, copies, tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._copies is not None:
            self._work.wait()
            if self._tensors:
                _give_back(self._tensors, self._copies)
            self._copies = None
        return True

    def is_completed(self) -> bool:
        return self._copies is None or self._work.is_completed()


class StagedGloo(dist.ProcessGroup):
    """A process group over one of gloo. A collective has ended when its call returns; messages end at `wait`."""

    def __init__(self, rank: int, size: int, gloo: dist.ProcessGroupGloo) -> None:
        super().__init__(rank, size)
        self._gloo = gloo

    def getBackendName(self) -> str:
        return BACKEND

    @property
    def group_name(self) -> str:
        # A group without a C++ backend has no place to keep it.
        return distributed_c10d._world.pg_names[self]

    def _run(self, operation: Callable[..., Any], out: Any, *given: Any) -> Any:
        """operation(out, *given) on copies; a tensor that is given keeps its value."""
        copies = _host(out)
        operation(copies, *given).wait()
        _give_back(out, copies)
        future: Future[Any] = Future()
        future.set_result(out)
        return _create_work_from_future(future)

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        return self._run(self._gloo.allreduce, tensors, opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        for tensor in tensors:
            options = dist.AllreduceOptions()
            options.reduceOp = opts.reduceOp
            work = self.allreduce([tensor], options)
        return work

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        return self._run(self._gloo.broadcast, tensors, opts or dist.BroadcastOptions())

    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        return self._run(self._gloo.reduce, tensors, opts or dist.ReduceOptions())

    def allgather(self, out: Any, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        return self._run(self._gloo.allgather, out, _host(tensors))

    def _allgather_base(self, out: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        def run(copy: Tensor, given: Tensor) -> Any:
            return self._gloo.allgather([list(copy.view(self.size(), -1).unbind())], [given.view(-1)])

        return self._run(run, out, _host(tensor))

    def allgather_into_tensor_coalesced(
        self, out: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> Any:
        for each, tensor in zip(out, tensors, strict=True):
            work = self._allgather_base(each, tensor)
        return work

    def _reduce_scatter_base(self, out: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        # The whole sum, of which each rank keeps its part: gloo has no other in older versions.
        def run(copy: Tensor, given: Tensor) -> Any:
            options = dist.AllreduceOptions()
            options.reduceOp = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
            work = self._gloo.allreduce([given], options)
            work.wait()
            copy.view(-1).copy_(given.view(self.size(), -1)[self.rank()])
            return work

        return self._run(run, out, _host(tensor))

    def reduce_scatter_tensor_coalesced(
        self, out: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> Any:
        for each, tensor in zip(out, tensors, strict=True):
            work = self._reduce_scatter_base(each, tensor, opts)
        return work

    def gather(self, out: Any, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        return self._run(self._gloo.gather, out, _host(tensors), opts or dist.GatherOptions())

    def scatter(self, out: Any, tensors: Any, opts: Any = None) -> Any:
        return self._run(self._gloo.scatter, out, _host(tensors), opts or dist.ScatterOptions())

    def alltoall_base(
        self, out: Tensor, tensor: Tensor, receive: Sequence[int], send: Sequence[int], opts: Any = None
    ) -> Any:
        return self._run(self._gloo.alltoall_base, out, _host(tensor), list(receive), list(send))

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int = 0) -> Any:
        copies = _host(tensors)
        return Sent(self._gloo.send(copies, rank, tag), copies)

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int = 0) -> Any:
        copies = _host(tensors)
        return Sent(self._gloo.recv(copies, rank, tag), copies, tensors)

    def barrier(self, opts: Any = None) -> Any:
        return self._gloo.barrier()

    # The names since torch 2.13.
    all_gather_single, all_gather_single_coalesced = _allgather_base, allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
