"""The exact memory estimate against real ranks over gloo, plan by plan.

`python benchmarks/exact_memory.py [part of a plan's name]` prints a table: the largest peak over all ranks as the run
reports it (live tensors of two steps), the same estimated, and the ratio of the rank where they are farthest apart.
Plans of at most 8 ranks, one after the other. CPU and float32 alone: nothing here says anything about CUDA's allocator.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from meshtune.runners.outcome import read_result
from meshtune.runners.trainer.exact import exact_peak
from meshtune.runners.trainer.job import JOB_FILE, Measuring, Router, TrainerJob, render_job
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

LIMIT_S = 120.0
GLOBAL_BATCH = 8
DENSE = ModelSpec(name="dense", layers=4, hidden=256, heads=8, kv_heads=4, ffn=768, vocab=2048, seq_len=128)
MIXTURE = replace(DENSE, name="mixture", experts=4, top_k=2)
# Fields of the plan; a global batch of 8, micro-batches of 1.
PLANS: dict[str, dict[str, object]] = {
    "one rank": {},
    "dp2 zero0": {"dp": 2},
    "dp2 zero1": {"dp": 2, "zero_stage": 1},
    "dp2 zero2": {"dp": 2, "zero_stage": 2},
    "dp2 zero3": {"dp": 2, "zero_stage": 3},
    "dp4 zero3": {"dp": 4, "zero_stage": 3},
    "tp2": {"tp": 2, "micro_batch_size": 4},
    "tp2 nosp": {"tp": 2, "sequence_parallel": False, "micro_batch_size": 4},
    "pp2 1f1b": {"pp": 2},
    "pp2 gpipe": {"pp": 2, "schedule": "gpipe"},
    "pp4 1f1b": {"pp": 4},
    "pp2 vpp2 interleaved": {"pp": 2, "vpp": 2, "schedule": "interleaved"},
    "pp2 vpp2 zero-bubble": {"pp": 2, "vpp": 2, "schedule": "zero_bubble"},
    "pp2 vpp2 zbv": {"pp": 2, "vpp": 2, "schedule": "zbv"},
    "pp2 dp2 zero1": {"pp": 2, "dp": 2, "zero_stage": 1},
    "tp2 pp2": {"tp": 2, "pp": 2, "micro_batch_size": 2},
    "tp2 pp2 dp2 zero3": {"tp": 2, "pp": 2, "dp": 2, "zero_stage": 3, "micro_batch_size": 2},
    "recompute full": {"recompute": "full"},
    "recompute selective": {"recompute": "selective"},
    "dp2 zero3 full": {"dp": 2, "zero_stage": 3, "recompute": "full"},
    "pp2 selective": {"pp": 2, "recompute": "selective"},
    "cp2": {"cp": 2, "micro_batch_size": 4},
    "cp2 ulysses": {"cp": 2, "context": "ulysses", "micro_batch_size": 4},
    "cp2 ring": {"cp": 2, "context": "ring", "micro_batch_size": 4},
    "cp2 dp2 zero3": {"cp": 2, "dp": 2, "zero_stage": 3, "micro_batch_size": 2},
    "moe ep2 zero1": {"dp": 2, "ep": 2, "zero_stage": 1, "micro_batch_size": 2},
    "moe ep2 zero3": {"dp": 2, "ep": 2, "zero_stage": 3, "micro_batch_size": 2},
    "moe ep2 zero1 learned": {"dp": 2, "ep": 2, "zero_stage": 1, "micro_batch_size": 2},
}


def build_job(name: str) -> TrainerJob:
    fields = {"micro_batch_size": 1} | PLANS[name]
    replicas = int(str(fields.get("dp", 1))) * int(str(fields["micro_batch_size"]))
    return TrainerJob(
        name=name,
        model=MIXTURE if name.startswith("moe") else DENSE,
        plan=Plan(grad_accum_steps=GLOBAL_BATCH // replicas, **fields),  # type: ignore[arg-type]
        router=Router.LEARNED if name.endswith("learned") else Router.BALANCED,
        measuring=Measuring(max_warmup_steps=0, min_steps=1, max_steps=1, profile_steps=0),
    )


def real_peaks(job: TrainerJob) -> tuple[int, ...]:
    """Every rank's peak, from a run on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / JOB_FILE
        path.write_text(render_job(job), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "meshtune.runners.trainer", str(path), "--directory", folder]
        subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        measurement = read_result(Path(folder)).measurement
    if measurement is None:
        raise RuntimeError(f"{job.name} measured nothing")
    return measurement.peak_memory_bytes


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(wanted: str) -> None:
    write("| plan | ranks | real MiB | estimate MiB | ratio | seconds per rank |\n|---|---|---|---|---|---|")
    for name in PLANS:
        if wanted not in name:
            continue
        job = build_job(name)
        real = real_peaks(job)
        start = time.monotonic()
        estimates = [exact_peak(job, rank).peak_bytes for rank in range(len(real))]
        seconds = (time.monotonic() - start) / len(real)
        ratio = max((ours / theirs for ours, theirs in zip(estimates, real, strict=True)), key=lambda x: abs(x - 1))
        write(
            f"| {name} | {len(real)} | {max(real) / 2**20:.2f} | {max(estimates) / 2**20:.2f} "
            f"| {ratio:.3f} | {seconds:.1f} |"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
