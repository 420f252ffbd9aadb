"""Jobs of the trainer, each a fresh process per rank, and their figures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from part import Work

from meshtune.runners.base import JobSpec, JobState
from meshtune.runners.log_lines import read_tail
from meshtune.runners.outcome import RESULT_FILE
from meshtune.runners.processes.gang import PERIOD_S, Gang, log_path, meeting_here
from meshtune.runners.trainer.failure import first_cause, read_failures
from meshtune.runners.trainer.job import JOB_FILE, Dtype, Measuring, TrainerJob, render_job
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.presets import cluster_presets

Found = dict[str, Any]
# Of a log without a failure's own words.
LAST_WORDS = 500
TRAINER = (sys.executable, "-m", "meshtune.runners.trainer")
# In this order: GH200 has H200 in its name.
PRESETS = {"GH200": "alps-gh200", "H200": "dgx-h200", "H100": "dgx-h100", "B200": "dgx-b200", "A100": "dgx-a100"}
# Power throttling settles in seconds (docs/gpu.md).
LEAST_S, LONGEST_S = 3.0, 8.0
# bfloat16 keeps 8 bits of a number: losses near 6 then agree to some hundredths.
BFLOAT16 = 0.1


def measuring(cuda: bool) -> Measuring:
    """Few warm-up steps and a short profile; on a device LEAST_S timed at least."""
    if not cuda:
        return Measuring(max_warmup_steps=1, min_steps=3, max_steps=6, profile_steps=1)
    limits = {"min_seconds": LEAST_S, "max_seconds": LONGEST_S}
    return Measuring(max_warmup_steps=3, min_steps=8, max_steps=40, profile_steps=2, **limits)


def job(work: Work, name: str, model: Any, plan: Any, **more: Any) -> TrainerJob:
    """A job on the device, in bfloat16 on one and in float32 on the CPU unless `more` says otherwise."""
    kind = DeviceKind.CUDA if work.cuda else DeviceKind.CPU
    settings = {"dtype": Dtype.BFLOAT16 if work.cuda else Dtype.FLOAT32, "measuring": measuring(work.cuda)} | more
    settings |= {"peak_flops": sheet_flops(work.device, str(settings["dtype"]))}
    return TrainerJob(**{"name": name, "model": model, "plan": plan, "device": kind, **settings})


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


def run(
    work: Work,
    jobs: Mapping[str, TrainerJob],
    *,
    command: Sequence[str] = TRAINER,
    at_once: int = 1,
    limit_s: float = inf,
) -> Iterator[tuple[str, Found]]:
    """Each job by its name, as it ends: {"wall_s", and "result", the result file, or "failure"}; {"late"} where the
    part's own time ended it, which says nothing of the job. Their processes start afresh."""
    waiting, running = dict(jobs), dict[str, Gang]()
    while waiting or running:
        while waiting and len(running) < at_once:
            name = next(iter(waiting))
            running[name] = start(waiting.pop(name), work, name, command, limit_s)
        for name, gang in list(running.items()):
            gang.step(time.monotonic())
            if not gang.alive:
                yield name, ended(running.pop(name), limit_s)
        time.sleep(PERIOD_S)


def start(job: TrainerJob, work: Work, name: str, command: Sequence[str], limit_s: float) -> Gang:
    directory = work.folder / name.replace(" ", "-").replace(",", "")
    directory.mkdir()
    (directory / JOB_FILE).write_text(render_job(job), encoding="utf-8")
    spec = JobSpec(
        name=str(directory),
        command=(*command, JOB_FILE),
        directory=directory,
        devices_per_node=job.plan.world_size,
        time_limit_s=max(0.0, min(limit_s, work.left_s)),
    )
    gang = Gang(spec, time.monotonic())
    gang.start(range(spec.processes), meeting_here(spec), None)
    return gang


def ended(gang: Gang, limit_s: float) -> Found:
    spec, status = gang.spec, gang.result()
    found: Found = {"wall_s": time.monotonic() - gang.started_at}
    if status.state is JobState.SUCCEEDED:
        return found | {"result": json.loads((spec.directory / RESULT_FILE).read_text(encoding="utf-8"))}
    if status.state is JobState.TIMED_OUT and spec.time_limit_s < limit_s:
        return found | {"late": f"{spec.time_limit_s:.0f} s were too few"}
    cause = first_cause(read_failures(spec.directory))
    words = cause.reason if cause else read_tail(log_path(spec.directory, 0)).strip()[-LAST_WORDS:]
    return found | {"failure": f"{status.reason}: {words}"}


def losses_apart(found: Found, reference: Found) -> float | None:
    """The largest difference of the first losses; None where either has none."""
    losses = [each["result"]["measurement"]["first_losses"] if "result" in each else () for each in (found, reference)]
    return max((abs(one - other) for one, other in zip(*losses, strict=False)), default=None)


def told(name: str, found: Found) -> str:
    """One line of a job's figures."""
    if "result" not in found:
        return f"{name}: {found.get('failure') or found['late']}"
    result = found["result"]
    summary, measured = result["summary"], result["measurement"]
    mfu = f", MFU {summary['mfu']:.1%}" if "mfu" in summary else ""
    compiled = f", compiled in {result['compile_s']:.1f} s" if "compile_s" in result else ""
    step, held = 1e3 * summary["step_time_s"], max(measured["peak_held_bytes"]) / 2**30
    words = f"{step:.1f} ms, {summary['tokens_per_s']:,.0f} tokens/s{mfu}, {held:.2f} GiB held"
    return f"{name}: {words}, {'+'.join(measured['attention_kernels'])}{compiled}, {found['wall_s']:.0f} s in all"
