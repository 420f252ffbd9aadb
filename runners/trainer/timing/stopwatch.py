"""Cuts a rank's step into spans: every moment belongs to exactly one, the rank's own work or one blocking call into a
process group. On CPU overlapping communication is seen only as far as the rank waited for it. An accelerator is
synchronised where spans meet: exact, but nothing overlaps in such a step (`Profile.serialised`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed import ProcessGroup, Work
from torch.utils._pytree import tree_leaves

from meshtune.runners.step_breakdown import Part
from meshtune.runners.trainer.failure import Phase
from meshtune.runners.trainer.parallel.mesh import synchronize

# What a call into a process group is known by on all of its members: the ranks, the direction ("", or "source>target"
# within the group) and a number that counts such calls.
Key = tuple[tuple[int, ...], str, int]


@dataclass(frozen=True, slots=True)
class GroupCall:
    """One communication, and which part its time belongs to. Its start is when this rank arrived at it."""

    key: Key
    part: Part


@dataclass(frozen=True, slots=True)
class Span:
    start_s: float
    end_s: float
    what: Part | GroupCall


@dataclass(slots=True)
class Stopwatch:
    """One step's spans. now: seconds, on the same clock for all ranks of a machine."""

    device: torch.device
    now: Callable[[], float] = time.perf_counter
    spans: list[Span] = field(default_factory=list)
    arrivals: dict[Key, float] = field(default_factory=dict)
    _work: Part = Part.COMPUTE
    _since: float = 0.0
    _inside: bool = False

    def start(self) -> None:
        self.spans, self.arrivals, self._work = [], {}, Part.COMPUTE
        self._since = self._settled_now()

    def stop(self) -> None:
        self._close(self._work)

    def enter_phase(self, phase: Phase) -> None:
        """The rank goes on to other work of its own."""
        self._close(self._work)
        self._work = Part.OPTIMIZER if phase is Phase.OPTIMIZER else Part.COMPUTE

    @contextmanager
    def blocked(self, call: GroupCall) -> Iterator[None]:
        """The time inside belongs to `call`; a call inside a call belongs to the outer one."""
        if self._inside:
            yield
            return
        self._close(self._work)
        self.arrivals.setdefault(call.key, self._since)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._close(call)

    def _close(self, what: Part | GroupCall) -> None:
        now = self._settled_now()
        self.spans.append(Span(self._since, now, what))
        self._since = now

    def _settled_now(self) -> float:
        synchronize(self.device)
        return self.now()


# By the group, and whether activations travel (else parameters and gradients): the part it belongs to.
# One group may serve both: with dp 1 the ranks of cp share keys and values, and are each other's replicas.
PartOf = Callable[[ProcessGroup, bool], Part]

_COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "scatter", "gather", "barrier"),
    *("allgather", "_allgather_base", "all_gather_single", "allgather_coalesced", "all_gather_single_coalesced"),
    *("allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
)
# Tokens on their way to experts, or heads for sequence: the model's own, through whichever door they go.
_EXCHANGES = ("alltoall", "alltoall_base", "all_to_all_single")
_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_OPERATORS = (
    *("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "broadcast", "broadcast_"),
    *("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"),
    *("all_to_all_single", "shard_dim_alltoall"),
)


class Interception:
    """Tells a stopwatch of every call into a process group. Calls are numbered as on the other members.

    torch has two doors: the methods of ProcessGroup, whose results are awaited by `Work.wait`, and the operators of
    `_c10d_functional`. Both are replaced by name for the time of a step; a TorchDispatchMode would double the
    time of small steps. Not seen: an operator's overloads but `op.default`."""

    def __init__(self, stopwatch: Stopwatch, part_of: PartOf) -> None:
        self._stopwatch, self._part_of = stopwatch, part_of
        self._counts: Counter[tuple[tuple[int, ...], str]] = Counter()
        # Held until awaited, so that neither an id nor an address is given to another one meanwhile.
        self._works: dict[int, tuple[object, GroupCall]] = {}
        self._tensors: dict[int, tuple[Tensor, GroupCall]] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        with ExitStack() as stack:
            for names, activations in ((_COLLECTIVES, False), (_EXCHANGES, True)):
                for name in names:
                    _replace(stack, ProcessGroup, name, partial(self._collective, activations=activations))
            _replace(stack, ProcessGroup, "send", partial(self._transfer, sends=True))
            _replace(stack, ProcessGroup, "recv", partial(self._transfer, sends=False))
            _replace(stack, Work, "wait", partial(self._wait, known_by=id, begun=self._works))
            for namespace in (getattr(torch.ops, name) for name in _NAMESPACES):
                for name in _OPERATORS:
                    _replace(stack, namespace, name, self._operator)
            _replace(
                stack,
                torch.ops._c10d_functional,
                "wait_tensor",
                partial(self._wait, known_by=Tensor.data_ptr, begun=self._tensors),
            )
            yield
        self._works.clear()
        self._tensors.clear()

    def _call(
        self, group: ProcessGroup, direction: str = "", part: Part | None = None, *, activations: bool = False
    ) -> GroupCall:
        ranks = tuple(dist.get_process_group_ranks(group))
        number = self._counts[ranks, direction]
        self._counts[ranks, direction] += 1
        key: Key = ranks, direction, number
        return GroupCall(key, self._part_of(group, activations) if part is None else part)

    def _collective(self, inner: Callable[..., Any], *, activations: bool) -> Callable[..., Any]:
        return lambda group, *args, **kwargs: self._issue(
            self._call(group, activations=activations), inner, group, *args, **kwargs
        )

    def _transfer(self, inner: Callable[..., Any], *, sends: bool) -> Callable[..., Any]:
        def transfer(group: ProcessGroup, tensors: Any, peer: int, *rest: Any, **kwargs: Any) -> Any:
            source, target = (group.rank(), peer) if sends else (peer, group.rank())
            call = self._call(group, f"{source}>{target}", Part.SEND_RECEIVE)
            return self._issue(call, inner, group, tensors, peer, *rest, **kwargs)

        return transfer

    def _issue(self, call: GroupCall, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._stopwatch.blocked(call):
            work = inner(*args, **kwargs)
        self._works[id(work)] = work, call
        return work

    def _wait(
        self, inner: Callable[..., Any], known_by: Callable[[Any], int], begun: dict[int, tuple[Any, GroupCall]]
    ) -> Callable[..., Any]:
        """Waits belong to the call that began what is awaited. known_by: its key among those begun."""

        def wait(awaited: Any, *args: Any, **kwargs: Any) -> Any:
            _, call = begun.pop(known_by(awaited), (None, None))
            with nullcontext() if call is None else self._stopwatch.blocked(call):
                return inner(awaited, *args, **kwargs)

        return wait

    def _operator(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def operate(*args: Any, **kwargs: Any) -> Any:
            # The schema's group_name is the last text among the arguments.
            name = [value for value in (*args, *kwargs.values()) if isinstance(value, str)][-1]
            group = c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]  # no __all__
            call = self._call(group, activations=True)
            with self._stopwatch.blocked(call):
                out = inner(*args, **kwargs)
            for tensor in tree_leaves(out):
                self._tensors[tensor.data_ptr()] = tensor, call
            return out

        return operate


class _Operator:
    """Stands for an operator: called like it and like its default overload, and still giving the others."""

    def __init__(self, inner: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._inner, self._called = inner, wrap(inner)
        self.default = wrap(inner.default) if hasattr(inner, "default") else inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _replace(stack: ExitStack, owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace owner.name until the stack unwinds; what this torch does not have is passed over."""
    inner = getattr(owner, name, None)
    if inner is None:
        return
    # From the class's own dictionary: what getattr gives for a method of C++ no longer binds to an instance.
    before = vars(owner)[name]
    setattr(owner, name, wrap(inner) if isinstance(owner, type) else _Operator(inner, wrap))
    stack.callback(setattr, owner, name, before)
