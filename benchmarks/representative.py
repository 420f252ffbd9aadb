"""Do our trainer's figures hold for other trainers? `python benchmarks/representative.py` on this machine's devices.

Each of twelve plans of one model is timed by our trainer and by the program that a user would run it with: a plain
script on one device; on four torch's DDP, FSDP2, parallel styles and pipelines in scripts of their own
(`reference_trainers/`), and DeepSpeed where it is installed. They hold float32 weights, as ours does, and compile their
layers where ours does: on accelerators. They are run in turn, so that a busy machine is busy for both. Printed: step
time, model FLOP/s as a share of what the devices' matrix products reach here (MFU), and memory held by the fullest
rank, of both; the last line is the rank correlation of the step times. Exit code 1 where a plan could not be run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import metrics
import numpy as np
import torch

from meshtune.runners.outcome import RESULT_FILE
from meshtune.runners.trainer.job import JOB_FILE, Dtype, Measuring, TrainerJob, render_job
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.plan import Plan, Recompute, Schedule

CUDA = torch.cuda.is_available()
REFERENCES = Path(__file__).parent / "reference_trainers"
# What the scripts read of a model.
MODEL = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq_len",
    "norm",
    "activation",
    "position",
    "tied_head",
)
# ZeRO 1 and 2; without DeepSpeed FSDP2 does both alike.
ZERO = "zero" if find_spec("deepspeed") else "fsdp"
LIMIT_S = 600.0
SEQUENCES = 16


def model(hidden: int, layers: int, seq_len: int) -> ModelSpec:
    return ModelSpec(
        name="representative",
        layers=layers,
        hidden=hidden,
        heads=hidden // 64,
        kv_heads=hidden // 64,
        ffn=hidden * 8 // 3 // 64 * 64,
        vocab=32 * hidden if CUDA else 8 * hidden,
        seq_len=seq_len,
        activation=Activation.SWIGLU,
        norm=Norm.RMSNORM,
        position=Position.ROPE,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A plan with the script that runs it. compiled: its layers are."""

    script: str
    plan: Plan
    compiled: bool = CUDA

    @property
    def label(self) -> str:
        return f"{self.plan.key}{' compiled' * self.compiled}"


def runs_of(ranks: int) -> list[Run]:
    """Twelve of 16 sequences a step."""
    if ranks == 1:
        alone = [
            Run("production", Plan(micro_batch_size=size, grad_accum_steps=SEQUENCES // size, recompute=kind))
            for kind in (Recompute.NONE, Recompute.FULL)
            for size in (1, 2, 4, 8, 16)
        ]
        return [*alone, *(replace(run, compiled=not CUDA) for run in alone[1:4:2])]
    if ranks != 4:
        raise SystemExit(f"--ranks: 1 or 4, not {ranks}")

    def data(size: int, stage: int = 0, **more: Any) -> Plan:
        return Plan(dp=4, micro_batch_size=size, grad_accum_steps=4 // size, zero_stage=stage, **more)

    return [
        Run("ddp", data(1)),
        Run("ddp", data(4)),
        Run("ddp", data(4, recompute=Recompute.FULL)),
        Run(ZERO, data(2, stage=1)),
        Run(ZERO, data(2, stage=2)),
        Run("fsdp", data(1, stage=3)),
        Run("fsdp", data(4, stage=3)),
        Run("fsdp", Plan(tp=2, dp=2, micro_batch_size=4, grad_accum_steps=2, zero_stage=3, sequence_parallel=True)),
        Run("fsdp", Plan(tp=4, micro_batch_size=4, grad_accum_steps=4, sequence_parallel=True)),
        Run("pipeline", Plan(pp=2, dp=2, micro_batch_size=1, grad_accum_steps=8)),
        Run("pipeline", Plan(pp=4, micro_batch_size=1, grad_accum_steps=16)),
        Run("pipeline", Plan(pp=4, micro_batch_size=4, grad_accum_steps=4, schedule=Schedule.GPIPE)),
    ]


@dataclass(frozen=True, slots=True)
class Figures:
    step_times_s: list[float]
    held_bytes: int


def ours(job: TrainerJob, directory: Path) -> Figures:
    (directory / JOB_FILE).write_text(render_job(job), encoding="utf-8")
    _run([sys.executable, "-m", "meshtune.runners.trainer", JOB_FILE], directory)
    measured = json.loads((directory / RESULT_FILE).read_text(encoding="utf-8"))["measurement"]
    return Figures(measured["step_times_s"], max(measured["peak_held_bytes"]))


def theirs(script: str, job: TrainerJob, directory: Path) -> Figures:
    document = {
        "model": {name: getattr(job.model, name) for name in MODEL},
        "plan": job.plan.as_dict(),
        "dtype": str(job.dtype),
        "compile": job.compile,
        "warmup_steps": job.measuring.max_warmup_steps,
        "steps": job.measuring.max_steps,
    }
    (directory / "reference.json").write_text(json.dumps(document), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = ["--nproc-per-node", str(job.plan.world_size)]
    said = _run([*torchrun, *ranks, str(REFERENCES / f"{script}.py"), "reference.json"], directory)
    line = json.loads(next(line for line in said.splitlines() if line.startswith('{"step_times_s"')))
    return Figures(line["step_times_s"], line["peak_held_bytes"])


def _run(command: list[str], directory: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": ""}
    environment |= {} if CUDA else {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
    with (directory / "stderr").open("wb") as errors:
        done = subprocess.run(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=errors, timeout=LIMIT_S
        )
    if done.returncode:
        logs = "".join(path.read_text(errors="replace")[-1500:] for path in sorted(directory.glob("rank-*.log")))
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}\n{(directory / 'stderr').read_text()[-1500:]}{logs}"
        )
    return done.stdout.decode()


def matrix_flops(dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product: of one device, or of all cores of this machine."""
    size, device = (8192, "cuda") if CUDA else (1024, "cpu")
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(12):
        begun = time.perf_counter()
        left @ right
        if CUDA:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return 2.0 * size**3 / min(times)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1 if torch.cuda.device_count() == 1 else 4, help="1 or 4")
    parser.add_argument("--hidden", type=int, default=2048 if CUDA else 256)
    parser.add_argument("--layers", type=int, default=16 if CUDA else 8)
    parser.add_argument("--seq-len", type=int, default=2048 if CUDA else 128)
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each plan by each trainer")
    arguments = parser.parse_args(argv)
    shape = model(arguments.hidden, arguments.layers, arguments.seq_len)
    dtype = Dtype.BFLOAT16 if CUDA else Dtype.FLOAT32
    rate = matrix_flops(getattr(torch, dtype)) * (arguments.ranks if CUDA else 1)
    sys.stdout.write(
        f"{shape.parameters / 1e6:.0f} M parameters, {dtype}; matrix products: {rate / 1e12:.3g} TFLOP/s\n"
    )
    sys.stdout.write(
        "| plan | trainer | ours ms | theirs ms | ours / theirs | MFU ours | theirs | held MiB ours | theirs |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|---|\n")
    measuring = Measuring(
        max_warmup_steps=3, min_steps=arguments.steps, max_steps=arguments.steps, profile_steps=0, stall_s=LIMIT_S
    )
    flops = shape.flops_per_token * SEQUENCES * shape.seq_len
    found: list[tuple[float, float]] = []
    listed = runs_of(arguments.ranks)
    device = DeviceKind.CUDA if CUDA else DeviceKind.CPU
    job = TrainerJob(name="representative", model=shape, plan=Plan(), device=device, dtype=dtype, measuring=measuring)
    for run in listed:
        job = replace(job, plan=run.plan, compile=run.compiled)
        own: list[Figures] = []
        other: list[Figures] = []
        try:
            for _ in range(arguments.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    own.append(ours(job, Path(folder)))
                with tempfile.TemporaryDirectory() as folder:
                    other.append(theirs(run.script, job, Path(folder)))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            sys.stdout.write(f"{run.label} by {run.script}: {error}\n")
            continue
        times = [min(median(figures.step_times_s) for figures in each) for each in (own, other)]
        held = [min(figures.held_bytes for figures in each) / 2**20 for each in (own, other)]
        found.append((times[0], times[1]))
        sys.stdout.write(
            f"| {run.label} | {run.script} | {1000 * times[0]:.1f} | {1000 * times[1]:.1f} | {times[0] / times[1]:.2f} "
            f"| {flops / times[0] / rate:.1%} | {flops / times[1] / rate:.1%} | {held[0]:.0f} | {held[1]:.0f} |\n"
        )
        sys.stdout.flush()
    correlation = metrics.spearman(*(np.array(column) for column in zip(*found, strict=True))) if found else None
    sys.stdout.write(
        "no rank correlation\n" if correlation is None else f"spearman {correlation:.2f} over {len(found)} plans\n"
    )
    return 0 if len(found) == len(listed) else 1


if __name__ == "__main__":
    sys.exit(main())
