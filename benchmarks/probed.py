"""How well the physics predicts what nobody has measured yet, from a probe alone: `python benchmarks/probed.py`.

One process on one core, one model, one global batch: every micro-batch that divides it, times every kind of
recomputation. A round probes (what `meshtune cluster probe --model` does) and takes a few steps of the trainer under
each plan, in turn. Times are the processor's, of the probe as of the steps, so that other programs on a busy machine
count only by what they take from its caches; a plan's time is the median of all its steps, its prediction the median of
what the rounds' probes predict. Printed for each plan: predicted and measured time and memory; below, the median of
max(p / m, m / p) - 1 of both, the worst, the rank correlation of the times, and the share of times inside the 90 %
interval; and the first of these for each round's probe alone."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median

import metrics
import numpy as np
from calibration import NINETY

from meshtune.runners.documents import read_value
from meshtune.runners.measuring import COUNTED_STEPS
from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.job import Dtype, TrainerJob
from meshtune.runners.trainer.parallel.mesh import build_mesh, choose_device, meet
from meshtune.runners.trainer.probe import NodeLayout, measure
from meshtune.runners.trainer.probe_rates import RankPlace
from meshtune.runners.trainer.timing.measure import LiveTensors
from meshtune.runners.trainer.train import Trainer
from meshtune.runners.trainer_answers import ProbeRequest
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.estimate import Estimates, estimate
from meshtune.search_spaces.physics.framework_profiles import TRAINER
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.tuner.cli.cluster_section import cluster_section
from meshtune.tuner.specs.read import read_model

STEPS = 3


def plans(batch: int) -> list[Plan]:
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    return [
        Plan(micro_batch_size=size, grad_accum_steps=batch // size, recompute=kind)
        for size in sizes
        for kind in Recompute
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt-micro", help="a preset")
    parser.add_argument("--dtype", default="float32", choices=[str(dtype) for dtype in Dtype])
    parser.add_argument("--batch", type=int, default=8, help="global batch, in sequences")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a probe")
    options = parser.parse_args()
    model, every = read_model(options.model), plans(options.batch)
    device = choose_device(DeviceKind.CPU, 0)
    with tempfile.TemporaryDirectory() as folder:
        meet(device, 0, 1, timedelta(minutes=1), Path(folder) / "rendezvous")
        place, mesh = RankPlace(device, time.process_time), build_mesh(Plan(), "cpu")
        jobs = [TrainerJob(name="probed", model=model, plan=plan, dtype=Dtype(options.dtype)) for plan in every]
        peaks, trainers = [], []
        for job in jobs:
            live = LiveTensors()
            with live:
                trainers.append(Trainer(job, mesh, device, Progress()))
                for step in range(COUNTED_STEPS):
                    trainers[-1].step(*trainers[-1].batch(step))
            peaks.append(live.peak_bytes)
        found: list[Estimates] = []
        times: list[list[float]] = [[] for _ in every]
        for _ in range(options.rounds):
            probed = measure(ProbeRequest(seconds=options.seconds, model=model), NodeLayout(((0,),)), place)
            cluster = read_value(ClusterSpec, cluster_section(probed, "here", None))
            found.append(estimate(Training(model, cluster, TRAINER[options.dtype]), columns_of(every)))
            for trainer, taken in zip(trainers, times, strict=True):
                tokens, targets = trainer.batch(0)
                trainer.step(tokens, targets)
                taken += [place.time(lambda t=trainer, x=tokens, y=targets: t.step(x, y), 1) for _ in range(STEPS)]
    show(every, found, np.array([median(taken) for taken in times]), np.array(peaks, dtype=float))


def show(every: Sequence[Plan], found: Sequence[Estimates], real: np.ndarray, held: np.ndarray) -> None:
    times = np.median([one.time.step_s for one in found], axis=0)
    peaks = np.median([one.memory.peak_bytes for one in found], axis=0)
    write("| micro-batch | recompute | predicted ms | measured ms | off | predicted MiB | measured MiB |")
    write("|---|---|---|---|---|---|---|")
    for plan, expected_s, step_s, expected, peak in zip(every, times, real, peaks, held, strict=True):
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
