"""The peak memory of any rank of any plan, to the tensor, from the trainer's own code on one core without a cluster.

The trainer takes two steps on tensors without memory (see fakes); large jobs are extrapolated from a few layers and
micro-batches. Not counted: the CUDA context, NCCL's buffers, workspaces of libraries, the allocator's slack. Kernels
are the CPU's, also for cuda: with cp all_gather CUDA's kernel for masks may need more. Routing is taken as balanced."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from meshtune.runners.trainer.exact.extrapolation import Sample, extend
from meshtune.runners.trainer.exact.fakes import FakeLiveTensors, alone, without_numbers
from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.job import Job, JobMalformed, parse_job
from meshtune.runners.trainer.parallel.mesh import Mesh, build_mesh
from meshtune.runners.trainer.parallel.pipeline import cut_layers, stages_of
from meshtune.runners.trainer.parallel.sharding import local
from meshtune.runners.trainer.support import require_supported
from meshtune.runners.trainer.timing.measure import COUNTED_STEPS
from meshtune.runners.trainer.train import Trainer
from meshtune.search_spaces.checks import Checks, InvalidValue
from meshtune.search_spaces.plan import ContextParallel, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPeak:
    """What one rank's tensors take at most. lasting_bytes: of the peak, what stays from step to step. parameters: those
    on this rank. extrapolated: fewer layers were run. micro_batches: how many were run. seconds: what the estimate
    took."""

    rank: int
    stage: int
    peak_bytes: int
    lasting_bytes: int
    parameters: int
    extrapolated: bool
    micro_batches: int
    seconds: float


def exact_peak(job: Job, rank: int, *, extrapolate: bool | None = None) -> ExactPeak:
    """Starts a process group of its own, so there must be none. extrapolate: over the layers; None: where it pays.
    Raises InvalidValue."""
    require_estimable(job, rank)
    start = time.perf_counter()
    torch.set_num_threads(1)
    with alone(job, rank) as live:
        mesh = build_mesh(job.plan, "cpu")
        stage = mesh.pipeline_rank
        chunks = [cut_layers(job.model.layers, job.plan.pp * job.plan.vpp, at) for at in stages_of(job.plan, stage)]
        layers = sum(map(len, chunks)) / len(chunks)
        sample, extrapolated, micro_batches = extend(
            job, layers, lambda sized: _run(sized, mesh, live()), extrapolate=extrapolate
        )
    return ExactPeak(
        rank=rank,
        stage=stage,
        **asdict(sample),
        extrapolated=extrapolated,
        micro_batches=micro_batches,
        seconds=time.perf_counter() - start,
    )


def require_estimable(job: Job, rank: int = 0) -> None:
    """Raise InvalidValue naming everything that cannot be estimated."""
    require_supported(job)
    plan, model = job.plan, job.model
    checks = Checks()
    checks.require(
        plan.cp == 1 or plan.context is not ContextParallel.RING,
        "plan.context",
        "ring attention has CUDA's kernels alone, which the exact estimate cannot run",
    )
    copies = plan.micro_batch_size * (model.seq_len // plan.cp) * model.top_k
    checks.require(
        model.experts == 0 or copies % model.experts == 0,
        "model.experts",
        f"routing is taken as even, but experts({model.experts}) do not divide a micro-batch's {copies} copies",
    )
    checks.require(
        0 <= rank < plan.world_size, "rank", f"must be at least 0 and below {plan.world_size} ranks, not {rank}"
    )
    checks.done()


def representatives(plan: Plan) -> list[int]:
    """One rank of the first, the second, a middle and the last pipeline stage; the others do what one of these does."""
    per_stage = plan.world_size // plan.pp
    return [stage * per_stage for stage in sorted({0, min(1, plan.pp - 1), plan.pp // 2, plan.pp - 1})]


def _run(job: Job, mesh: Mesh, live: FakeLiveTensors) -> Sample:
    """Two steps of a trainer, the second of which has the optimizer's states."""
    with without_numbers(), live:
        trainer = Trainer(job, mesh, torch.device("cpu"), Progress())
        for step in range(COUNTED_STEPS):
            tokens, targets = trainer.batch(step)
            trainer.step(tokens, targets)
            del tokens, targets
        parameters = sum(local(parameter).numel() for parameter in trainer.parameters())
        lasting = live.bytes
    return Sample(live.peak_bytes, lasting, parameters)


def main(argv: Sequence[str]) -> int:
    """Print a JSON list, one object per rank. Exit status 2: the job cannot be estimated, said on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m meshtune.runners.trainer.exact", description="Exact peak memory of ranks."
    )
    parser.add_argument("job", type=Path, help="the job file; - reads it from standard input")
    parser.add_argument("--rank", type=int, action="append", help="which ranks (default: one per kind of stage)")
    arguments = parser.parse_args(argv)
    try:
        text = sys.stdin.read() if str(arguments.job) == "-" else arguments.job.read_text(encoding="utf-8")
        job = parse_job(text)
        peaks = [exact_peak(job, rank) for rank in arguments.rank or representatives(job.plan)]
    except (OSError, JobMalformed, InvalidValue) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps([asdict(peak) for peak in peaks]) + "\n")
    return 0
