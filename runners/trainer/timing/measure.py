"""Times the steps of a run on one rank, and counts the rank's memory meanwhile; a CPU rank caps its own (Linux only).

Tensors: counted by the device's allocator, on CPU by `LiveTensors`. Held: what that allocator reserved and what the
process has of the device beside it, on CPU resident memory above what was there at the start, gloo's buffers and
libraries' pages included."""

from __future__ import annotations

import math
import resource
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meshtune.runners.measuring import COUNTED_STEPS, is_settled, is_surely_slower, window_of
from meshtune.runners.step_breakdown import Profile
from meshtune.runners.trainer.compiling import compiles
from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.job import Measuring, TrainerJob
from meshtune.runners.trainer.parallel.mesh import Mesh, gather, slowest, synchronize
from meshtune.runners.trainer.timing.attention import noting_attention
from meshtune.runners.trainer.timing.breakdown import profile_steps
from meshtune.runners.trainer.train import Trainer

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def status_bytes(key: str) -> int:
    """One of this process's sizes in the kernel's book: VmRSS, VmHWM, VmData."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise KeyError(f"{STATUS} has no {key}")


class PeakMemory:
    """The peaks since this object was made. live: to be entered while tensors are made; None where the device's
    allocator counts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.live = LiveTensors() if device.type == "cpu" else None
        if self.live is None:
            torch.get_device_module(device).reset_peak_memory_stats(device)
            self._outside_at_start, _ = self._outside_and_whole()
            return
        with suppress(OSError):  # not allowed everywhere; then an earlier, higher peak would count
            CLEAR.write_text("5", encoding="ascii")  # proc(5): resets the peak resident set size
        self._at_start = status_bytes("VmRSS")

    def tensor_bytes(self) -> int:
        """The most that tensors took; on CPU in the steps during which `live` was entered."""
        if self.live is None:
            return int(torch.get_device_module(self._device).max_memory_allocated(self._device))
        return self.live.peak_bytes

    def held_bytes(self) -> int:
        """The most that this process took for them."""
        if self.live is None:
            reserved = int(torch.get_device_module(self._device).max_memory_reserved(self._device))
            return held_on_device(reserved, self._outside_at_start, *self._outside_and_whole())
        return max(0, status_bytes("VmHWM") - self._at_start)

    def _outside_and_whole(self) -> tuple[int, int]:
        """Bytes of the device in use outside of this process's allocator, and all of them; zeros where it says none."""
        module = torch.get_device_module(self._device)
        try:
            free, whole = module.mem_get_info(self._device)
        except RuntimeError:  # drivers of XPUs may not
            return 0, 0
        return whole - free - module.memory_reserved(self._device), whole


# What a context takes at most (estimated: 0.3 to 0.8 GB); the device tells no process's own share.
CONTEXT_BYTES = 2**30


def held_on_device(reserved: int, outside_at_start: int, outside: int, whole: int) -> int:
    """What a process held of its device at most: what its allocator reserved, and its context and libraries' buffers.

    outside_at_start, outside: bytes in use outside of that allocator when the process had a context and nothing else,
    and at its end. What a context does not take of the first was other processes', taken to be still there. whole: the
    device's bytes, a bound."""
    others = max(0, outside_at_start - CONTEXT_BYTES)
    return max(reserved, min(whole, reserved + outside - others))


@contextmanager
def capped(limit_bytes: int | None) -> Iterator[None]:
    """Let this process allocate `limit_bytes` more than it has now; what goes beyond fails as out of memory.

    RLIMIT_DATA counts private writable memory alone: torch's allocator then fails cleanly."""
    if limit_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes("VmData") + limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as are all of the mode's own methods
    """While entered: bytes and peak_bytes of the storages made since, which stay known after leaving."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._watches: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart first; its local tensors and temporaries come by then
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and self._counts(leaf):
                self._see(leaf.untyped_storage())
        return out

    def _counts(self, tensor: Tensor) -> bool:
        # The storage is asked: DTensor plans with fake tensors, which claim to be on the CPU and hold nothing.
        return tensor.untyped_storage().device.type == "cpu"

    def __enter__(self) -> LiveTensors:
        # FSDP2 frees and refills storages in place, past the dispatcher.
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._count(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            self._watches[key] = weakref.ref(storage, lambda _: self._forget(key))
            self._count(storage)

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self.bytes += size - self._sizes[storage._cdata]
        self._sizes[storage._cdata] = size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _forget(self, key: int) -> None:
        self.bytes -= self._sizes.pop(key, 0)
        self._watches.pop(key, None)


class LossNotFinite(RuntimeError):
    """The loss became infinite or not a number; the same job fails again."""


class Decision(IntEnum):
    """What rank 0 wants to do after a step."""

    STEP = 0
    ENOUGH = 1
    GIVE_UP = 2


@dataclass(slots=True)
class Timings:
    """What the steps took, the first losses, and gradient norms of the counted steps; equal on all ranks. settled:
    warm-up came to its end by itself. pruned: given up as slower than the incumbent. skipped: steps that moved no
    weight (see LossScaler). compile_s: all but a plain step of the one that compiled, which is in neither list.
    attention_kernels: of all ranks. first_s, last_s: the first step's start and the last one's end, since the epoch."""

    warmup_times_s: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)
    first_gradient_norms: list[float] = field(default_factory=list)
    settled: bool = True
    pruned: bool = False
    skipped: int = 0
    profile: Profile | None = None
    attention_kernels: tuple[str, ...] = ()
    compile_s: float | None = None
    first_s: float = 0.0
    last_s: float = 0.0


class Steps:
    """Takes the steps of one run, in order, and keeps the first losses, and gradient norms of steps that are not timed:
    a norm costs the time to read the gradient once."""

    def __init__(self, job: TrainerJob, trainer: Trainer, device: torch.device, progress: Progress) -> None:
        self._wanted = job.measuring.loss_steps
        self._trainer, self._device, self._progress = trainer, device, progress
        self.taken = 0
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.started_at = time.time()

    def take(self) -> float:
        """One step; how long the slowest rank took. Collective. Raises LossNotFinite."""
        tokens, targets = self._trainer.batch(self.taken)
        self._trainer.keeps_norm = self.taken < min(self._wanted, COUNTED_STEPS)
        synchronize(self._device)
        dist.barrier()
        start = time.perf_counter()
        loss = self._trainer.step(tokens, targets)
        synchronize(self._device)
        longest_s = slowest(time.perf_counter() - start, self._device)
        if self._trainer.keeps_norm:
            self.norms.append(self._trainer.global_gradient_norm())
        if self.taken < self._wanted:
            self.losses.append(self._trainer.global_loss(loss))
            if not math.isfinite(self.losses[-1]):
                raise LossNotFinite(f"the loss of step {self.taken} is {self.losses[-1]}")
        self.taken += 1
        self._progress.beat()
        return longest_s


def measure(
    job: TrainerJob, trainer: Trainer, mesh: Mesh, device: torch.device, live: LiveTensors | None, progress: Progress
) -> Timings:
    """Collective. live: counts the memory of the first steps, uncompiled; None where the device's allocator does. The
    limit on a step holds from the one after compiling on."""
    steps = Steps(job, trainer, device, progress)
    compiled = compiles(job)
    if not compiled:
        progress.begin_steps()
    # Compiled functions run as they were written: a mode that counts memory sees nothing else.
    with live or nullcontext(), torch.compiler.set_stance("force_eager") if live and compiled else nullcontext():
        counted_s = [steps.take() for _ in range(COUNTED_STEPS - 1)]
        with noting_attention(trainer.first_chunk, compiled and live is None) as kernels:
            counted_s.append(steps.take())
    compiled_s = None
    if compiled:
        compiled_s = counted_s[0] if live is None else steps.take()
        progress.begin_steps()
    timings = time_steps(job, steps, device)
    if compiled_s is not None:
        timings.compile_s = max(0.0, compiled_s - median(timings.step_times_s))
    timings.first_losses, timings.first_gradient_norms = steps.losses, list(takewhile(math.isfinite, steps.norms))
    timings.skipped = trainer.skipped_steps
    timings.attention_kernels = tuple(sorted(set().union(*gather(kernels))))
    count = job.measuring.profile_steps
    if count and not timings.pruned:
        wanted = range(steps.taken, steps.taken + count)
        timings.profile = profile_steps(wanted, trainer, mesh, device, progress)
    timings.first_s, timings.last_s = steps.started_at, time.time()
    return timings


def time_steps(job: TrainerJob, steps: Steps, device: torch.device) -> Timings:
    """Collective. Raises LossNotFinite."""
    measuring = job.measuring
    times: list[float] = []
    while True:
        timings = split(times, measuring)
        # A plan is given up by a window of steps, since a slower one must not cost the time that a good one is given.
        early = split(times, replace(measuring, min_seconds=0.0))
        incumbent_s = job.incumbent_step_time_s
        slower = incumbent_s is not None and is_surely_slower(early.step_times_s, incumbent_s)
        decision = Decision.ENOUGH if measuring.enough(timings.step_times_s) else Decision.STEP
        # Rank 0's decision, so that no two ranks differ.
        vote = torch.tensor(int(Decision.GIVE_UP if slower else decision), device=device)
        dist.broadcast(vote, src=0)
        decision = Decision(int(vote.item()))
        if decision is Decision.GIVE_UP:
            return replace(early, pruned=True)
        if decision is Decision.ENOUGH:
            return timings
        times.append(steps.take())


def split(times: Sequence[float], measuring: Measuring) -> Timings:
    """Warm-up and timed steps; all count as warm-up while it is not known."""
    length = measuring.warmup(times)
    length = len(times) if length is None else length
    timed = list(times[length:])
    settled = is_settled(window_of(timed, *measuring.window) or timed, measuring.precision)
    return Timings(list(times[:length]), timed, settled=settled)
