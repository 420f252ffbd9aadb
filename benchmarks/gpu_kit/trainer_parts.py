"""The parts that need the trainer alone, and so run under Python 3.10 too: the probe, and the correctness of losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from part import MODELS, SHAPE, Work

from meshtune.runners.outcome import ResultError, read_result
from meshtune.runners.trainer.job import Dtype, Job, Measuring, render_job
from meshtune.runners.trainer_answers import PROBE_FILE, REQUEST_FILE, ProbeRequest
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan

# Probing is for rates; longer makes them no better.
MAX_PROBE_S = 20.0
# One job of correctness, with the import of torch and the start of CUDA in each of its processes.
JOB_LIMIT_S = 90.0
# Between two float32 runs, in the loss: of the same device with other orders of sums, and of two kinds of device. A
# broken sum, place or shard shows by 1e-3 and more (tests/trainer/test_losses.py).
SAME_DEVICE, OTHER_DEVICE = 1e-4, 1e-3
# bfloat16 keeps 8 bits of a number: losses near 6 then agree to some hundredths.
BFLOAT16 = 0.1
BATCH = 8
SINGLE = Plan(micro_batch_size=BATCH)
# The layouts that several processes on one device try: name -> plan.
SHARED = {
    "tp2": Plan(tp=2, micro_batch_size=4, grad_accum_steps=2),
    "tp2 without sequence parallelism": Plan(tp=2, micro_batch_size=BATCH, sequence_parallel=False),
    "pp2": Plan(pp=2, micro_batch_size=2, grad_accum_steps=4),
    "dp2 zero0": Plan(dp=2, micro_batch_size=4),
    "dp2 zero1": Plan(dp=2, micro_batch_size=4, zero_stage=1),
    "dp2 zero2": Plan(dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=2),
    "dp2 zero3": Plan(dp=2, micro_batch_size=4, zero_stage=3),
    "cp2": Plan(cp=2, micro_batch_size=BATCH),
    "cp2 in a ring": Plan(cp=2, micro_batch_size=BATCH, context=ContextParallel.RING),
    "tp2 pp2": Plan(tp=2, pp=2, micro_batch_size=2, grad_accum_steps=4),
    "tp2 dp2 zero1": Plan(tp=2, dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=1),
    "pp2 dp2 zero2": Plan(pp=2, dp=2, micro_batch_size=1, grad_accum_steps=4, zero_stage=2),
}


def probe(work: Work) -> dict[str, Any]:
    """One device alone: CPU or CUDA."""
    directory = work.folder / "probe"
    directory.mkdir(exist_ok=True)
    for stale in (directory / "ranks", directory / "rendezvous"):
        if stale.exists():
            stale.rename(directory / f"{stale.name}.{os.getpid()}")
    request = ProbeRequest(seconds=max(1.0, min(MAX_PROBE_S, work.left_s / 2)), devices_per_node=1)
    (directory / REQUEST_FILE).write_text(json.dumps(asdict(request)), encoding="utf-8")
    command = [sys.executable, "-m", "meshtune.runners.trainer.probe", str(directory), "--start"]
    subprocess.run(command, check=True, timeout=work.left_s)
    return json.loads((directory / PROBE_FILE).read_text(encoding="utf-8"))


def correctness(work: Work) -> dict[str, Any]:
    """Losses of the first steps; each job is kept as it ends."""
    kind = DeviceKind.CUDA if work.cuda else DeviceKind.CPU
    job = Job(
        name="correctness",
        model=ModelSpec(name="tiny", **{**MODELS["tiny"], "layers": 4}, **SHAPE),
        plan=SINGLE,
        device=kind,
        measuring=Measuring(max_warmup_steps=0, min_steps=2, max_steps=2, profile_steps=0),
    )
    # name -> (job, the run that it is compared with, how far their losses may be apart)
    runs = {"one process": (job, "", 0.0)}
    if work.cuda:
        runs["one process on the CPU"] = (replace(job, device=DeviceKind.CPU), "one process", OTHER_DEVICE)
        runs["one process, compiled"] = (replace(job, compile=True), "one process", SAME_DEVICE)
    runs["one process, bfloat16"] = (replace(job, dtype=Dtype.BFLOAT16), "one process", BFLOAT16)
    for name, plan in SHARED.items():
        runs[f"{plan.world_size} processes, {name}"] = (replace(job, plan=plan), "one process", SAME_DEVICE)
    found: dict[str, Any] = {}
    for name, (each, _, _) in runs.items():
        directory = work.folder / name.replace(" ", "_")
        try:
            found[name] = work.once(name, lambda each=each, directory=directory: losses(each, directory, work))
        except OutOfTime:
            work.partial = f"{len(found)} of {len(runs)} jobs were run; the next run goes on"
            break
    reference = found.get("one process", {})
    checks = {}
    for name, (_, against, tolerance) in runs.items():
        if not against or name not in found or "losses" not in reference:
            continue
        told = found[name]
        pairs = zip(told.get("losses", ()), reference["losses"], strict=False)
        apart = max((abs(one - other) for one, other in pairs), default=None)
        checks[name] = {
            "right": apart is not None and apart <= tolerance,
            "apart": apart,
            "tolerance": tolerance,
            "failure": told.get("failure", ""),
        }
    return {"device": str(kind), "reference": reference, "checks": checks, "backend": "gloo by way of the CPU"}


class OutOfTime(Exception):
    """The part's time ended before the job did, which says nothing of the job."""


def losses(job: Job, directory: Path, work: Work) -> dict[str, Any]:
    """The first losses of a job, or why it failed. Its processes start afresh: a fork must not have begun CUDA. Raises
    OutOfTime."""
    limit_s = min(JOB_LIMIT_S, work.left_s)
    directory.mkdir(exist_ok=True)
    for stale in directory.iterdir():
        if stale.is_file():
            stale.unlink()
    path = directory / "job.json"
    path.write_text(render_job(job), encoding="utf-8")
    command = [
        sys.executable,
        str(Path(__file__).with_name("shared_device.py")),
        str(path),
        "--directory",
        str(directory),
    ]
    processes, logs = [], []
    try:
        for rank in range(job.plan.world_size):
            logs.append((directory / f"rank-{rank}.log").open("wb"))
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job.plan.world_size)}
            environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
            processes.append(subprocess.Popen(command, env=environment, stdout=logs[-1], stderr=logs[-1]))
        end = time.monotonic() + limit_s
        codes = [process.wait(max(0.0, end - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        if limit_s < JOB_LIMIT_S:
            raise OutOfTime from None
        return {"failure": f"no end within {JOB_LIMIT_S:g} s"}
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for log in logs:
            log.close()
    try:
        measurement = None if any(codes) else read_result(directory).measurement
    except ResultError as error:
        return {"failure": str(error)}
    if measurement is None:
        first = next(rank for rank, code in enumerate(codes) if code)
        lines = (directory / f"rank-{first}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        told = next((line for line in lines if "failed in" in line), lines[-1] if lines else "no output")
        return {"failure": f"rank {first} exited with {codes[first]}: {told}"}
    return {"losses": list(measurement.first_losses)}
