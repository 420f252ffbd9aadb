"""Times optimizer steps until the median is known well enough. A step takes as long as its slowest rank.

First two steps in which memory is counted (the optimizer's state is made in the first, so the second has the peak),
then warm-up and timed steps (`runners.measuring`), last a few steps taken apart (`trainer.timing.breakdown`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import IntEnum

import torch
import torch.distributed as dist

from meshtune.runners.measuring import COUNTED_STEPS, WINDOW, is_settled, is_surely_slower, warmup_length
from meshtune.runners.step_breakdown import Profile
from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.job import Job, Measuring
from meshtune.runners.trainer.parallel.mesh import Mesh, slowest, synchronize
from meshtune.runners.trainer.timing.breakdown import profile_steps
from meshtune.runners.trainer.timing.memory import LiveTensors
from meshtune.runners.trainer.train import Trainer


class LossNotFinite(RuntimeError):
    """The loss became infinite or not a number; the same job fails again."""


class Next(IntEnum):
    """What rank 0 wants to do after a step."""

    STEP = 0
    ENOUGH = 1
    GIVE_UP = 2


@dataclass(slots=True)
class Timings:
    """What the steps took, and the first losses; equal on all ranks. settled: warm-up came to its end by itself.
    pruned: given up as slower than the incumbent. first_s, last_s: the first step's start and the last one's end, since
    the epoch."""

    warmup_times_s: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)
    settled: bool = True
    pruned: bool = False
    profile: Profile | None = None
    first_s: float = 0.0
    last_s: float = 0.0


class Steps:
    """Takes the steps of one run, in order, and keeps the first losses."""

    def __init__(self, job: Job, trainer: Trainer, device: torch.device, progress: Progress) -> None:
        self._wanted = job.measuring.loss_steps
        self._trainer, self._device, self._progress = trainer, device, progress
        self.taken = 0
        self.losses: list[float] = []
        self.started_at = time.time()

    def take(self) -> float:
        """One step; how long the slowest rank took. Collective. Raises LossNotFinite."""
        tokens, targets = self._trainer.batch(self.taken)
        synchronize(self._device)
        dist.barrier()
        start = time.perf_counter()
        loss = self._trainer.step(tokens, targets)
        synchronize(self._device)
        longest_s = slowest(time.perf_counter() - start, self._device)
        if self.taken < self._wanted:
            self.losses.append(self._trainer.global_loss(loss))
            if not math.isfinite(self.losses[-1]):
                raise LossNotFinite(f"the loss of step {self.taken} is {self.losses[-1]}")
        self.taken += 1
        self._progress.beat()
        return longest_s


def measure(
    job: Job, trainer: Trainer, mesh: Mesh, device: torch.device, live: LiveTensors | None, progress: Progress
) -> Timings:
    """Collective. live: counts the memory of the first steps; None where the device's allocator does."""
    steps = Steps(job, trainer, device, progress)
    with live or nullcontext():
        for _ in range(COUNTED_STEPS):
            steps.take()
    timings = time_steps(job, steps, device)
    timings.first_losses = steps.losses
    count = job.measuring.profile_steps
    if count and not timings.pruned:
        wanted = range(steps.taken, steps.taken + count)
        timings.profile = profile_steps(wanted, trainer, mesh, device, progress)
    timings.first_s, timings.last_s = steps.started_at, time.time()
    return timings


def time_steps(job: Job, steps: Steps, device: torch.device) -> Timings:
    """Collective. Raises LossNotFinite."""
    measuring = job.measuring
    window = min(WINDOW, measuring.max_steps)
    times: list[float] = []
    while True:
        timings = split(times, measuring, window)
        decision = _agreed(_decide(timings, measuring, job.incumbent_step_time_s), device)
        if decision is not Next.STEP:
            timings.settled = is_settled(timings.step_times_s[:window], measuring.precision)
            timings.pruned = decision is Next.GIVE_UP
            return timings
        times.append(steps.take())


def split(times: Sequence[float], measuring: Measuring, window: int) -> Timings:
    """Warm-up and timed steps; all count as warm-up while it is not known."""
    length = warmup_length(times, most=measuring.max_warmup_steps, window=window, tolerance=measuring.precision)
    length = len(times) if length is None else length
    return Timings(list(times[:length]), list(times[length:]))


def _decide(timings: Timings, measuring: Measuring, incumbent_s: float | None) -> Next:
    samples = timings.step_times_s
    if incumbent_s is not None and is_surely_slower(samples, incumbent_s):
        return Next.GIVE_UP
    return Next.ENOUGH if measuring.enough(samples) else Next.STEP


def _agreed(decision: Next, device: torch.device) -> Next:
    """Rank 0's decision, so that no two ranks differ."""
    vote = torch.tensor(int(decision), device=device)
    dist.broadcast(vote, src=0)
    return Next(int(vote.item()))
