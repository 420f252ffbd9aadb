"""What a workload makes of a plan on 8 devices of 2 nodes, and reads from the lines that its ranks leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from places import cluster

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.outcome import Outcome
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.workloads.base import JobRequest, Workload
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

MODEL = ModelSpec(name="tiny", layers=4, hidden=64, heads=4, ffn=256, vocab=1024, seq_len=32)
DONE = JobStatus(state=JobState.SUCCEEDED, exit_code=0)
BROKEN = JobStatus(state=JobState.FAILED, reason="rank 0 ended with exit status 1", exit_code=1)


class WorkloadLab:
    def __init__(self, kind: str, plan: Plan, model: ModelSpec = MODEL, **options: Any) -> None:
        """options: what the workload is told unless a test says otherwise."""
        self.kind, self.plan, self.model, self.options = kind, plan, model, options

    def workload(self, **options: Any) -> Workload:
        return create_workload(self.kind, self.options | options)

    def materialize(self, folder: Path, plan: Plan | None = None, device: str = "cuda", **options: Any) -> JobSpec:
        place = cluster(2, 4, device, memory_bytes=2**36, peak_flops={"bfloat16": 1e15})
        made = self.workload(**options)
        return made.materialize(JobRequest("t1", self.model, plan or self.plan, place, folder, seed=7, time_limit_s=60))

    def outcome(
        self,
        folder: Path,
        logs: Mapping[int, Sequence[str]],
        status: JobStatus = DONE,
        plan: Plan | None = None,
        device: str = "cuda",
        **options: Any,
    ) -> Outcome:
        """What the workload reads from these lines of these ranks."""
        for name, text in self.materialize(folder, plan, device, **options).files.items():
            (folder / name).write_text(text)
        for rank, lines in logs.items():
            log_path(folder, rank).write_text("".join(f"{line}\n" for line in lines))
        return self.workload(**options).read(folder, status)
