"""Through the local runner, a real torch job measures and starts warm the second time."""

from __future__ import annotations

import time

import pytest
from places import TINY, cluster

from meshtune.runners.base import JobState
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.search_spaces.plan import Plan

pytestmark = pytest.mark.slow

PLAN = Plan(dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=1)
CLUSTER = cluster(1, 2, memory_bytes=2 * 2**30)


def submit(lab, name: str, **measuring) -> TorchWorkload:
    workload = TorchWorkload({"measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 4} | measuring})
    directory = lab.folder / "work" / name
    lab.runner.submit(workload.materialize(name, TINY, PLAN, CLUSTER, directory, seed=0, time_limit_s=120))
    return workload


def test_later_jobs_start_warm_and_all_measure(local):
    took = []
    for name in ("cold", "warm", "again"):
        submitted_at = time.time()
        workload = submit(local, name)
        status = local.wait(name, limit_s=90)
        outcome = workload.read(local.folder / "work" / name, status)
        assert (status.state, outcome.verdict) == (JobState.SUCCEEDED, Verdict.OK), outcome
        assert outcome.measurement.tokens_per_step == PLAN.global_batch_size * TINY.seq_len
        assert len(outcome.measurement.peak_memory_bytes) == 2
        took.append(status.finished_at - submitted_at)
    cold, *warm = took
    # Importing torch is most of the cold one, and the warm ones have nothing of it; one may be held up by the machine.
    assert min(warm) < cold / 2
