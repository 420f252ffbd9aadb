"""Through the local runner, a real torch job measures and starts warm the second time."""

from __future__ import annotations

import time

import pytest

from meshtune.runners.base import JobState
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

pytestmark = pytest.mark.slow

MODEL = ModelSpec(name="tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128, seq_len=16)
PLAN = Plan(dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=1)
DEVICE = DeviceSpec(name="cpu", kind=DeviceKind.CPU, memory_bytes=2 * 2**30)
CLUSTER = ClusterSpec(name="c", nodes=1, devices_per_node=2, device=DEVICE)


def submit(lab, name: str, **measuring) -> TorchWorkload:
    workload = TorchWorkload({"measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 4} | measuring})
    directory = lab.folder / "work" / name
    lab.runner.submit(workload.materialize(name, MODEL, PLAN, CLUSTER, directory, seed=0, time_limit_s=120))
    return workload


def test_later_jobs_start_warm_and_all_measure(local):
    took = []
    for name in ("cold", "warm", "again"):
        submitted_at = time.time()
        workload = submit(local, name)
        status = local.wait(name, limit_s=90)
        outcome = workload.read(local.folder / "work" / name, status)
        assert (status.state, outcome.verdict) == (JobState.SUCCEEDED, Verdict.OK), outcome
        assert outcome.measurement.tokens_per_step == PLAN.global_batch_size * MODEL.seq_len
        assert len(outcome.measurement.peak_memory_bytes) == 2
        took.append(status.finished_at - submitted_at)
    cold, *warm = took
    # Importing torch is most of the cold one, and the warm ones have nothing of it; one may be held up by the machine.
    assert min(warm) < cold / 2
