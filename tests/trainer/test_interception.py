"""No communication of a step goes past the interception: torch's own dispatcher counts as many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshtune.runners.trainer.job import render_job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# Each rank of each job takes a step under both and says what both counted.
COUNT = """
import sys, time
from pathlib import Path
import torch
from torch.distributed import barrier, destroy_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
import meshtune.runners.trainer.main as main
from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.gang import run_gang
from meshtune.runners.trainer.timing.interception import Interception
from meshtune.runners.trainer.parallel.mesh import build_mesh
from meshtune.runners.trainer.timing.breakdown import part_by_axis
from meshtune.runners.trainer.timing.stopwatch import Stopwatch
from meshtune.runners.trainer.train import Trainer

class Counting(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        talks = func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd")
        self.count += talks and not func.name().endswith(("wait_tensor", "_wrap_tensor_autograd"))
        return func(*args, **(kwargs or {}))

def count(job, rank, directory):
    device = main.choose_device(job)
    main.meet(job, rank, directory)
    mesh = build_mesh(job.plan, "cpu")
    trainer = Trainer(job, mesh, device, Progress())
    trainer.step(*trainer.batch(0))
    watch, seen = Stopwatch(device), Counting()
    with Interception(watch, part_by_axis(mesh)).active(), seen:
        watch.start()
        trainer.step(*trainer.batch(1))
        watch.stop()
    (directory / f"count-{rank}").write_text(f"{seen.count} {len(watch.arrivals)}")
    barrier()  # as a rank does: no peer is still in the step when this one hangs up
    destroy_process_group()
    return 0

for name in sys.argv[1:]:
    directory = Path(name).resolve()
    job = main.read_job(directory / "job.json")
    run_gang(job, directory, lambda rank: count(job, rank, directory))
"""

PLANS = {
    "zero1": {"dp": 2, "zero_stage": 1},
    "zero2": {"dp": 2, "zero_stage": 2},
    "zero3": {"dp": 2, "zero_stage": 3},
    "tp": {"tp": 2, "micro_batch_size": 8},
    "pp": {"pp": 2},
    "all": {"tp": 2, "pp": 2, "dp": 2, "micro_batch_size": 2, "zero_stage": 3},
}


def test_every_communication_is_intercepted(tmp_path, make_job):
    for name, plan in PLANS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text(render_job(make_job(plan=plan)), encoding="utf-8")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", COUNT, *PLANS]
    subprocess.run(command, cwd=tmp_path, env=env, check=False, timeout=180, stdout=subprocess.DEVNULL)
    for name, plan in PLANS.items():
        counts = [path.read_text().split() for path in sorted((tmp_path / name).glob("count-*"))]
        assert len(counts) == plan.get("dp", 1) * plan.get("tp", 1) * plan.get("pp", 1)
        for dispatched, intercepted in counts:
            assert dispatched == intercepted, name
            assert int(dispatched) > 0
