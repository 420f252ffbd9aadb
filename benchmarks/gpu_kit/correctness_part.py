"""The part that compares losses: the device against the CPU, number formats, and several processes that share it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from part import TINY, Work
from trainer_jobs import BFLOAT16, losses_apart, run

from meshtune.runners.trainer.job import Dtype, Measuring, TrainerJob
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan

# Weights are drawn on the CPU, and ranks that share a device talk by way of the CPU.
COMMAND = (sys.executable, str(Path(__file__).with_name("shared_device.py")))
# Jobs at a time, where a device has the machine's many cores beside it.
AT_ONCE = 4
# One job, with the import of torch and the start of CUDA in each of its processes.
JOB_LIMIT_S = 60.0
# Between two float32 runs, in the loss: of the same device with other orders of sums, and of two kinds of device. A
# broken sum, place or shard shows by 1e-3 and more (tests/trainer/test_losses.py).
SAME_DEVICE, OTHER_DEVICE = 1e-4, 1e-3
BATCH = 8
ONE = "one process"
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


def runs(work: Work) -> dict[str, tuple[TrainerJob, float]]:
    """By name: the job, and how far its losses may be apart from those of the first one."""
    job = TrainerJob(
        name="correctness",
        model=ModelSpec(name="tiny", **{**TINY, "layers": 4, "ffn": 256}),
        plan=Plan(micro_batch_size=BATCH),
        device=DeviceKind.CUDA if work.cuda else DeviceKind.CPU,
        measuring=Measuring(max_warmup_steps=0, min_steps=2, max_steps=2, profile_steps=0),
    )
    found = {ONE: (job, 0.0)}
    if work.cuda:
        found[f"{ONE} on the CPU"] = (replace(job, device=DeviceKind.CPU), OTHER_DEVICE)
        found[f"{ONE}, compiled"] = (replace(job, compile=True), SAME_DEVICE)
    found[f"{ONE}, bfloat16"] = (replace(job, dtype=Dtype.BFLOAT16), BFLOAT16)
    shared = {f"{plan.world_size} processes, {name}": replace(job, plan=plan) for name, plan in SHARED.items()}
    return found | {name: (each, SAME_DEVICE) for name, each in shared.items()}


def correctness(work: Work) -> None:
    """Losses of the first steps; each job is kept as it ends."""
    wanted, found = runs(work), {}
    jobs = {name: job for name, (job, _) in wanted.items()}
    at_once = AT_ONCE if work.cuda else 1
    for name, each in run(work, jobs, command=COMMAND, at_once=at_once, limit_s=JOB_LIMIT_S):
        if "late" in each:
            work.end("cut", f"{len(found)} of {len(wanted)} jobs ended in the time")
        else:
            found[name] = each
            work.keep(name, each)
    checks = {}
    for name, each in found.items():
        if name != ONE:
            apart, tolerance = losses_apart(each, found.get(ONE, {})), wanted[name][1]
            right = apart is not None and apart <= tolerance
            checks[name] = {"right": right, "apart": apart, "tolerance": tolerance, "failure": each.get("failure", "")}
    wrong = [f"{name} ({told['failure'] or told['apart']})" for name, told in checks.items() if not told["right"]]
    words = f"{len(checks) - len(wrong)} of {len(checks)} agree"
    work.keep("checks", checks, words + (f"; not: {', '.join(wrong)}" if wrong else ""))
