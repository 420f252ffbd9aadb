"""The context of a job's log, `brief.json` in its directory: what a step is, whose time a program's log tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshtune.runners.json_files import read_versioned, render_versioned
from meshtune.runners.outcome import Measurement
from meshtune.runners.workloads.base import JobRequest
from meshtune.search_spaces.cluster import DeviceKind
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


def context_file(request: JobRequest, *, dtype: str, warmup_steps: int) -> dict[str, str]:
    """The file of one trial's context, by its name. dtype: what the program computes in, for the device's peak."""
    context = LogContext(
        plan=request.plan,
        tokens_per_step=request.plan.global_batch_size * request.model.seq_len,
        devices=request.plan.world_size,
        model_flops_per_token=request.model.flops_per_token,
        peak_flops_per_device=request.cluster.device.peak_flops.get(dtype),
        warmup_steps=warmup_steps,
        device=request.cluster.device.kind,
    )
    return {CONTEXT_FILE: render_context(context)}


def render_context(context: LogContext) -> str:
    return render_versioned(context, _VERSION)


def read_context(directory: Path) -> LogContext:
    """Raises OSError, ValueError."""
    return read_versioned(LogContext, (directory / CONTEXT_FILE).read_text(encoding="utf-8"), _VERSION)
