"""draft"""
from __future__ import annotations
import time
from dataclasses import dataclass
import torch
from runners.trainer.fakes import alone, without_numbers
from runners.trainer.failure import Progress
from runners.trainer.job import Job
from runners.trainer.measure import COUNTED_STEPS
from runners.trainer.mesh import build_mesh
from runners.trainer.parallel import local
from runners.trainer.support import require_supported
from runners.trainer.train import Trainer


def run(job, rank):
    require_supported(job)
    start = time.perf_counter()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    with alone(job, rank) as live:
        mesh = build_mesh(job.plan, "cpu")
        with without_numbers(), live:
            t = Trainer(job, mesh, device, Progress())
            built = live.bytes
            for step in range(COUNTED_STEPS):
                tokens, targets = t.batch(step)
                t.step(tokens, targets)
    return live.peak_bytes, built, time.perf_counter() - start
