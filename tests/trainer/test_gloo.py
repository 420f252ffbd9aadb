"""Every group of a CPU job has one worker: two corrupt the heap in torch 2.13, see runners/trainer/compat.py."""

from __future__ import annotations

# Before the first step, so after every group has been made.
COUNT_WORKERS = """
import torch
import torch.distributed as dist
import meshtune.runners.trainer.main as trainer_main
measure = trainer_main.measure

def measure_after_a_look(*arguments):
    for group in dist.distributed_c10d._world.pg_map:
        print("workers", group._get_backend(torch.device("cpu")).options._threads)
    return measure(*arguments)

trainer_main.measure = measure_after_a_look
"""


def test_every_group_of_a_cpu_job_has_one_worker(run_job, make_job):
    plan = {"dp": 2, "cp": 2, "context": "ulysses", "zero_stage": 1}
    finished = run_job(make_job(plan=plan), COUNT_WORKERS)
    assert finished.status == 0
    said = [line for line in (finished.directory / "rank-0.log").read_text().splitlines() if "workers" in line]
    assert len(said) >= 3  # all ranks, dp, cp
    assert set(said) == {"workers 1"}
