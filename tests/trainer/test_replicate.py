"""The road that ZeRO 0 takes on CUDA, torch's replicate(), gives the same losses; driven here over gloo.

Says nothing about its speed, nor about NCCL.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runners.trainer.job import render_job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from runners.trainer.failure import Progress
from runners.trainer.gang import run_gang
from runners.trainer.main import choose_device, meet, read_job
from runners.trainer.mesh import build_mesh
from runners.trainer.parallel import Sharding
from runners.trainer.train import Trainer

def run_rank(rank):
    device = choose_device(job)
    meet(job, rank, directory)
    trainer = Trainer(job, build_mesh(job.plan, device.type), device, Progress(), Sharding.REPLICATE)
    losses = [trainer.global_loss(trainer.step(*trainer.batch(step))) for step in range(4)]
    (directory / f"losses-{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()
    return 0

for name in sys.argv[1:]:
    directory = Path(name)
    job = read_job(directory / "job.json")
    run_gang(job, directory, run_rank)
"""


def test_replicate_does_not_change_the_losses(tmp_path, run_job, make_job):
    plans = {"plain": {"dp": 2}, "pipeline": {"pp": 2, "dp": 2}, "tensor": {"tp": 2, "dp": 2, "micro_batch_size": 2}}
    for name, plan in plans.items():
        (tmp_path / name).mkdir()
        job = make_job(plan=plan, model={"tied_head": True})
        (tmp_path / name / "job.json").write_text(render_job(job), encoding="utf-8")
    directories = [str(tmp_path / name) for name in plans]
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *directories], cwd=ROOT, check=True, timeout=120, stdout=subprocess.DEVNULL
    )
    reference = run_job(make_job(plan={"micro_batch_size": 8}, model={"tied_head": True})).losses
    for name, plan in plans.items():
        for rank in range(make_job(plan=plan).plan.world_size):
            losses = json.loads((tmp_path / name / f"losses-{rank}.json").read_text(encoding="utf-8"))
            assert losses == pytest.approx(reference, abs=1e-4), (name, rank)
