"""The context of a job's log: a program of somebody else's tells step times, and the context what a step is.

It lies in the job's directory as `brief.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshtune.runners.json_files import read_versioned, render_versioned
from meshtune.runners.outcome import Measurement
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

CONTEXT_FILE = "brief.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """tokens_per_step: over all replicas. warmup_steps: the first steps, which are not timed. Others as Measurement."""

    plan: Plan
    tokens_per_step: int
    devices: int
    model_flops_per_token: float
    peak_flops_per_device: float | None = None
    warmup_steps: int = 0
    device: DeviceKind = DeviceKind.CUDA

    def measurement(self, step_times_s: Sequence[float], **rest: Any) -> Measurement:
        """What the program measured, warm-up steps first. Raises InvalidValue where no step is left to time."""
        return Measurement(
            step_times_s=tuple(step_times_s[self.warmup_steps :]),
            warmup_times_s=tuple(step_times_s[: self.warmup_steps]),
            tokens_per_step=self.tokens_per_step,
            devices=self.devices,
            model_flops_per_token=self.model_flops_per_token,
            peak_flops_per_device=self.peak_flops_per_device,
            **rest,
        )


def context_of(model: ModelSpec, plan: Plan, cluster: ClusterSpec, *, dtype: str, warmup_steps: int) -> LogContext:
    """The context of one trial's log. dtype: what the program computes in, for the device's peak."""
    return LogContext(
        plan=plan,
        tokens_per_step=plan.global_batch_size * model.seq_len,
        devices=plan.world_size,
        model_flops_per_token=model.flops_per_token,
        peak_flops_per_device=cluster.device.peak_flops.get(dtype),
        warmup_steps=warmup_steps,
        device=cluster.device.kind,
    )


def render_context(context: LogContext) -> str:
    return render_versioned(context, _VERSION)


def read_context(directory: Path) -> LogContext:
    """Raises OSError, ValueError."""
    return read_versioned(LogContext, (directory / CONTEXT_FILE).read_text(encoding="utf-8"), _VERSION)
