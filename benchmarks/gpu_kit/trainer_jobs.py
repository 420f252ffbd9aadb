"""Jobs of the trainer, each a fresh process per rank, and their figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from part import Work

from meshtune.runners.outcome import RESULT_FILE, read_result
from meshtune.runners.trainer.job import JOB_FILE, Dtype, Job, Measuring, render_job
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.presets import cluster_presets

TRAINER = (sys.executable, "-m", "meshtune.runners.trainer")
# In this order: GH200 has H200 in its name.
PRESETS = {"GH200": "alps-gh200", "H200": "dgx-h200", "H100": "dgx-h100", "B200": "dgx-b200", "A100": "dgx-a100"}
# Power throttling settles in seconds (docs/gpu.md).
LEAST_S, LONGEST_S = 3.0, 8.0
# bfloat16 keeps 8 bits of a number: losses near 6 then agree to some hundredths.
BFLOAT16 = 0.1


class OutOfTime(Exception):
    """The part's time ended before the job did, which says nothing of the job."""


def measuring(cuda: bool) -> Measuring:
    """Few warm-up steps and a short profile; on a device LEAST_S timed at least, where this version has that limit."""
    if not cuda:
        return Measuring(max_warmup_steps=1, min_steps=3, max_steps=6, profile_steps=1)
    limits: dict[str, Any] = {"max_seconds": LONGEST_S}
    if "min_seconds" in {field.name for field in fields(Measuring)}:
        limits["min_seconds"] = LEAST_S
    return Measuring(max_warmup_steps=3, min_steps=8, max_steps=40, profile_steps=2, **limits)


def job(work: Work, name: str, model: Any, plan: Any, **more: Any) -> Job:
    """A job on the device, in bfloat16 on one and in float32 on the CPU unless `more` says otherwise."""
    kind = DeviceKind.CUDA if work.cuda else DeviceKind.CPU
    settings = {"dtype": Dtype.BFLOAT16 if work.cuda else Dtype.FLOAT32, "measuring": measuring(work.cuda)} | more
    settings |= {"peak_flops": sheet_flops(work.device, str(settings["dtype"]))}
    return Job(**{"name": name, "model": model, "plan": plan, "device": kind, **settings})


def preset(device: str) -> str:
    """The preset of a cluster of devices of this name; no name is the CPU's. Raises LookupError."""
    if not device:
        return "local-cpu"
    found = next((preset for kind, preset in PRESETS.items() if kind in device), None)
    if found is None:
        raise LookupError(f"no preset has devices of the kind {device}: {', '.join(PRESETS)}")
    return found


def sheet_flops(device: str, dtype: str) -> float | None:
    """The data sheet's peak of this device, None where it is not known."""
    try:
        peaks = cluster_presets()[preset(device)]["device"].get("peak_flops", {})
    except LookupError:
        return None
    return peaks.get(dtype)


def run(job: Job, directory: Path, work: Work, *, command: Sequence[str] = TRAINER, limit_s: float = 1e9) -> Any:
    """The job's figures, or {"failure"}. Raises OutOfTime where the part's own time ended it."""
    own_limit_s = min(limit_s, work.left_s)
    directory.mkdir(parents=True)
    (directory / JOB_FILE).write_text(render_job(job), encoding="utf-8")
    begun = time.monotonic()
    codes = run_processes([*command, JOB_FILE], directory, job.plan.world_size, own_limit_s)
    if codes is None:
        if own_limit_s < limit_s:
            raise OutOfTime(f"{job.name}: {own_limit_s:.0f} s were too few")
        return {"failure": f"no end within {limit_s:g} s"}
    found = {"wall_s": time.monotonic() - begun}
    if any(codes):
        first = next(rank for rank, code in enumerate(codes) if code)
        return found | {"failure": f"rank {first} exited with {codes[first]}: {last_words(directory, first)}"}
    return found | figures(directory, job)


def run_processes(command: Sequence[str], directory: Path, ranks: int, limit_s: float) -> list[int] | None:
    """Exit codes of processes that have their ranks' places; None: they were ended by the limit."""
    processes, logs = [], []
    try:
        for rank in range(ranks):
            logs.append((directory / f"rank-{rank}.log").open("wb"))
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            environment = {**os.environ, **place}
            processes.append(
                subprocess.Popen(command, cwd=directory, env=environment, stdout=logs[-1], stderr=logs[-1])
            )
        end = time.monotonic() + limit_s
        return [process.wait(max(0.0, end - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        return None
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for log in logs:
            log.close()


def last_words(directory: Path, rank: int) -> str:
    lines = (directory / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return next((line for line in lines if "failed in" in line), lines[-1] if lines else "no output")[-500:]


def figures(directory: Path, job: Job) -> dict[str, Any]:
    """What a job measured, for the record. mfu: of the data sheet's peak. parts: shares of a profiled step."""
    measured = read_result(directory).measurement
    assert measured is not None, "it exited with 0"
    extra = json.loads((directory / RESULT_FILE).read_text(encoding="utf-8"))
    profile = measured.profile
    mean = (
        {}
        if profile is None
        else {part: median(parts[part] for parts in profile.parts_s) for part in profile.parts_s[0]}
    )
    return {
        "plan": job.plan.key,
        "compile": job.compile,
        "step_time_s": measured.step_time_s,
        "step_times_s": list(measured.step_times_s),
        "warmup_times_s": list(measured.warmup_times_s),
        "tokens_per_s": measured.tokens_per_s,
        "mfu": measured.mfu,
        "peak_memory_bytes": measured.max_memory_bytes,
        "peak_held_bytes": measured.summary.max_held_bytes,
        "parts": {str(part): share / profile.step_time_s for part, share in mean.items() if share and profile},
        "attention_kernels": list(measured.attention_kernels),
        "compile_s": extra.get("compile_s") or extra["measurement"].get("compile_s"),
        "build_s": extra.get("build_s"),
        "first_losses": list(measured.first_losses),
    }


def losses_apart(found: Mapping[str, Any], reference: Mapping[str, Any]) -> float | None:
    """The largest difference of the first losses; None where either has none."""
    pairs = zip(found.get("first_losses", ()), reference.get("first_losses", ()), strict=False)
    return max((abs(one - other) for one, other in pairs), default=None)


def told(name: str, found: dict[str, Any]) -> str:
    """One line of a job's figures."""
    if "failure" in found:
        return f"{name}: {found['failure']}"
    mfu = "" if found["mfu"] is None else f", MFU {found['mfu']:.1%}"
    compiled = "" if found["compile_s"] is None else f", compiled in {found['compile_s']:.1f} s"
    step, rate, held = f"{1e3 * found['step_time_s']:.1f} ms", found["tokens_per_s"], found["peak_held_bytes"] / 2**30
    kernels = "+".join(found["attention_kernels"])
    words = f"{step}, {rate:,.0f} tokens/s{mfu}, {held:.2f} GiB held, {kernels}{compiled}"
    return f"{name}: {words}, {found['wall_s']:.0f} s in all"
