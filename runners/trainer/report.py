"""What rank 0 writes down at the end: the measurement, the versions that it holds for, and numbers derived from it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshtune.runners.devices.record import text_of
from meshtune.runners.outcome import Measurement, Outcome, Verdict, write_result
from meshtune.runners.report import send
from meshtune.runners.trainer.compiling import note
from meshtune.runners.trainer.job import TrainerJob
from meshtune.runners.trainer.timing.attention import MATH
from meshtune.runners.trainer.timing.measure import Timings
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.physics.recipes import flops_per_token

# Where the kernel modules of NVIDIA and AMD say which driver they are; reading them starts no process.
DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))
# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", or the number alone.
_VERSION = re.compile(r"(?:^|\s)(\d+(?:\.\d+)+)(?:\s|$)")


def software(device: torch.device) -> dict[str, str]:
    """Versions by name; a driver that says none is left out. The process group must be there: it is the backend's."""
    versions = {"torch": torch.__version__, "python": platform.python_version(), "backend": dist.get_backend()}
    if device.type == "cuda":
        versions |= {"cuda": str(torch.version.cuda or torch.version.hip)}
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # it has no annotations
        versions |= {"nccl": ".".join(map(str, nccl))}
        versions_read = [version for path in DRIVER_FILES if (version := driver_version(path)) is not None]
        versions |= {"driver": versions_read[0]} if versions_read else {}
    if device.type == "xpu":
        properties = torch.xpu.get_device_properties(device)
        versions |= {"xpu": str(torch.version.xpu), "driver": properties.driver_version}
    return versions


def driver_version(path: Path) -> str | None:
    """The version that a driver's file tells; None where there is no such file, or no version in its first line."""
    match = _VERSION.search(text_of(path).partition("\n")[0])
    return None if match is None else match[1]


def report(
    job: TrainerJob,
    timings: Timings,
    peaks: Sequence[Sequence[int]],
    build_s: float,
    device: torch.device,
    directory: Path,
    knobs: Mapping[str, KnobValue | None],
) -> None:
    """Write the result file. peaks: per rank, bytes of tensors and bytes held. knobs: as the process has them."""
    measurement = Measurement(
        step_times_s=tuple(timings.step_times_s),
        tokens_per_step=job.plan.global_batch_size * job.model.seq_len,
        devices=job.plan.world_size,
        model_flops_per_token=flops_per_token(job.model, job.recipe),
        peak_flops_per_device=job.peak_flops,
        warmup_times_s=tuple(timings.warmup_times_s),
        first_losses=tuple(timings.first_losses),
        first_gradient_norms=tuple(timings.first_gradient_norms),
        peak_memory_bytes=tuple(tensors for tensors, _ in peaks),
        peak_held_bytes=tuple(held for _, held in peaks),
        profile=timings.profile,
        software=software(device),
        attention_kernels=timings.attention_kernels,
        knobs=dict(knobs),
        compile_s=timings.compile_s,
    )
    on_cpu = device.type == "cpu"
    cpu_name = platform.processor() or platform.machine()
    extra = {
        "summary": summary(measurement),
        "plan": job.plan.as_dict(),
        "build_s": build_s,
        **({} if timings.compile_s is None else {"compile_s": timings.compile_s}),
        "steps_at": {"first_s": timings.first_s, "last_s": timings.last_s},
        "device_name": cpu_name if on_cpu else torch.get_device_module(device).get_device_name(device),
    }
    send(write_result(directory, conclude(job, timings, measurement), extra))


def conclude(job: TrainerJob, timings: Timings, measurement: Measurement) -> Outcome:
    """The verdict, and a sentence for whatever people should know about the numbers."""
    interval = measurement.step_time_interval_s
    if timings.pruned:
        reason = (
            f"given up after {len(measurement.step_times_s)} steps: a step takes {interval.low:.4g} to "
            f"{interval.high:.4g} s, surely more than the incumbent's {job.incumbent_step_time_s:.4g} s"
        )
        return Outcome(verdict=Verdict.PRUNED, partial=measurement, reason=reason)
    notes = [words] if (words := note(job)) else []
    if not timings.settled:
        notes.append(f"step times were still moving after {len(measurement.warmup_times_s)} warm-up steps")
    if timings.skipped:
        notes.append(f"{timings.skipped} steps moved no weight: their scaled gradients overflowed float16")
    if measurement.profile is not None and measurement.profile.straggler is not None:
        notes.append(str(measurement.profile.straggler))
    if MATH in measurement.attention_kernels:
        notes.append("attention ran without a fused kernel (math): it made all scores, which takes time and memory")
    return Outcome(verdict=Verdict.OK, measurement=measurement, reason="; ".join(notes))


def summary(measurement: Measurement) -> dict[str, Any]:
    """Derived numbers, for whoever reads the file by eye; programs derive them from the measurement."""
    interval, profile = measurement.step_time_interval_s, measurement.profile
    flops = measurement.flops_per_s_per_device
    straggler = None if profile is None else profile.straggler
    derived = {
        "step_time_s": measurement.step_time_s,
        "step_time_interval_s": [interval.low, interval.high],
        "step_time_interval_coverage": interval.coverage,
        "tokens_per_s": measurement.tokens_per_s,
        "tokens_per_s_per_device": measurement.tokens_per_s_per_device,
        "tflops_per_device": None if flops is None else flops / 1e12,
        "mfu": measurement.mfu,
        "own_time_s": None if profile is None else profile.own_time_s,
        "exposed_s": None if profile is None else profile.exposed_s(measurement.step_time_s),
        "straggler": None if straggler is None else {"rank": straggler.rank, "ratio": straggler.ratio},
    }
    return {key: value for key, value in derived.items() if value is not None}
