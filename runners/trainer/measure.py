"""Times optimizer steps until the median is known well enough. A step takes as long as its slowest rank.

Making the data is not timed, nor is agreeing about times and losses. The first steps are dropped. No profile by part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from runners.statistics import is_tight
from runners.trainer.job import Job, Measuring
from runners.trainer.train import Trainer


class LossNotFinite(RuntimeError):
    """The loss became infinite or not a number; the same job fails again."""


@dataclass(frozen=True, slots=True)
class Timings:
    """What the steps took, warm-up apart, and the first losses. Equal on all ranks."""

    warmup_times_s: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)


def time_steps(job: Job, trainer: Trainer, device: torch.device) -> Timings:
    """Collective. Raises LossNotFinite."""
    timings, measuring = Timings(), job.measuring
    step = 0
    while not _agreed(_is_enough(timings, measuring), device):
        tokens, targets = trainer.batch(step)
        elapsed_s, loss = _timed(lambda: trainer.step(tokens, targets), device)  # noqa: B023  # called at once
        times = timings.warmup_times_s if step < measuring.warmup_steps else timings.step_times_s
        times.append(slowest(elapsed_s, device))
        if step < measuring.loss_steps:
            timings.first_losses.append(_finite(trainer.global_loss(loss), step))
        step += 1
    return timings


def _is_enough(timings: Timings, measuring: Measuring) -> bool:
    samples = timings.step_times_s
    if len(samples) < measuring.min_steps:
        return False
    if len(samples) >= measuring.max_steps or sum(samples) >= measuring.max_seconds:
        return True
    return is_tight(samples, measuring.precision)


def _agreed(enough: bool, device: torch.device) -> bool:
    """What rank 0 thinks, so that no two ranks can differ about taking one more step."""
    vote = torch.tensor(int(enough), device=device)
    dist.broadcast(vote, src=0)
    return bool(vote.item())


def _timed(step: Callable[[], torch.Tensor], device: torch.device) -> tuple[float, torch.Tensor]:
    synchronize(device)
    dist.barrier()
    start = time.perf_counter()
    loss = step()
    synchronize(device)
    return time.perf_counter() - start, loss


def slowest(elapsed_s: float, device: torch.device) -> float:
    """The largest of all ranks' numbers. Collective."""
    longest = torch.tensor(elapsed_s, dtype=torch.float64, device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest.item())


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise LossNotFinite(f"the loss of step {step} is {loss}")
    return loss
