"""How well the physics predicts what nobody has measured yet, from a probe alone: `python benchmarks/probed.py`.

One process, one model, one global batch: every micro-batch that divides it, times every kind of recomputation. A round
probes this machine (`meshtune cluster probe --model`) and then runs each plan by the trainer, in turn. Other programs
only ever lengthen a step, so a plan's time is the least of its rounds' medians; of predictions, each round's probe
makes its own, and the median of them is what a plan's row has. Printed for each plan: predicted and measured time and
memory; below, the median of max(p / m, m / p) - 1 of both, the worst, the rank correlation of the times, and the share
of times inside the 90 % interval; and the first of these for each round's probe alone."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import metrics
import numpy as np
from calibration import NINETY

from meshtune.runners.documents import read_value
from meshtune.runners.outcome import Measurement, read_result
from meshtune.runners.trainer.job import JOB_FILE, Dtype, Job, Measuring, render_job
from meshtune.runners.trainer_answers import ProbeRequest
from meshtune.runners.trainer_client import probe
from meshtune.runners.workloads.torch import TorchWorkload
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.estimate import Estimates, estimate
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.tuner.cli.commands.cluster import cluster_section
from meshtune.tuner.specs.read import read_model

MEASURING = Measuring(max_warmup_steps=3, min_steps=6, max_steps=12, max_seconds=6, profile_steps=0)


def plans(batch: int, layers: int) -> list[Plan]:
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    return [
        Plan(micro_batch_size=size, grad_accum_steps=batch // size, recompute=kind)
        for size in sizes
        for kind in Recompute
    ]


def run(job: Job) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / JOB_FILE
        file.write_text(render_job(job))
        command = [sys.executable, "-m", "meshtune.runners.trainer", str(file), "--directory", folder]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        measured = read_result(Path(folder)).measurement if done.returncode == 0 else None
        if measured is None:
            raise SystemExit(f"{job.plan.key}: {done.stdout}{done.stderr}")
        return measured


def predict(cluster: ClusterSpec, model: ModelSpec, dtype: Dtype, every: Sequence[Plan]) -> Estimates:
    return estimate(Training(model, cluster, TorchWorkload({"dtype": str(dtype)}).framework), columns_of(every))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt-micro")
    parser.add_argument("--dtype", default="float32", choices=[str(dtype) for dtype in Dtype])
    parser.add_argument("--batch", type=int, default=8, help="global batch, in sequences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a probe")
    options = parser.parse_args()
    model, dtype = read_model(options.model), Dtype(options.dtype)
    every = plans(options.batch, model.layers)
    found: list[Estimates] = []
    runs: list[list[Measurement]] = [[] for _ in every]
    for _ in range(options.rounds):
        probed = probe(ProbeRequest(seconds=options.seconds, devices_per_node=1, model=model))
        assert probed is not None
        cluster = read_value(ClusterSpec, cluster_section(probed, "here", None))
        found.append(predict(cluster, model, dtype, every))
        for plan, measured in zip(every, runs, strict=True):
            job = Job(name="probed", model=model, plan=plan, dtype=dtype, measuring=MEASURING)
            measured.append(run(job))
    show(every, found, runs)


def show(every: Sequence[Plan], found: Sequence[Estimates], runs: Sequence[Sequence[Measurement]]) -> None:
    times = np.median([one.time.step_s for one in found], axis=0)
    peaks = np.median([one.memory.peak_bytes for one in found], axis=0)
    real = np.array([min(one.step_time_s for one in measured) for measured in runs])
    held = np.array([median(max(one.peak_memory_bytes) for one in measured) for measured in runs])
    write("| micro-batch | recompute | predicted ms | measured ms | off | predicted MiB | measured MiB |")
    write("|---|---|---|---|---|---|---|")
    for plan, *row in zip(every, times, real, peaks, held, strict=True):
        expected_s, step_s, expected, peak = row
        sizes = f"{expected / 2**20:.0f} | {peak / 2**20:.0f} |"
        step = f"{1e3 * expected_s:.0f} | {1e3 * step_s:.0f} | {expected_s / step_s - 1:+.1%}"
        write(f"| {plan.micro_batch_size} | {plan.recompute} | {step} | {sizes}")
    off, memory = (np.abs(np.log(a / b)) for a, b in ((times, real), (peaks, held)))
    inside = np.mean(off <= NINETY * np.median([one.time.log_sd for one in found], axis=0))
    write(
        f"time: median {np.expm1(np.median(off)):.1%}, worst {np.expm1(off.max()):.1%}, "
        f"rank correlation {metrics.spearman(times, real):.2f}, {inside:.0%} inside 90 %; "
        f"memory: median {np.expm1(np.median(memory)):.1%}"
    )
    single = [np.expm1(np.median(np.abs(np.log(one.time.step_s / real)))) for one in found]
    write("median by each round's probe: " + ", ".join(f"{one:.1%}" for one in single))


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
