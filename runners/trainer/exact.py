"""The peak memory of any rank of any plan, to the tensor, from the trainer's own code on one core without a cluster.

The trainer takes two steps on tensors without memory (see fakes); large jobs are extrapolated from a few layers and
micro-batches, which is not for models whose layers differ. Not counted: the CUDA context, NCCL's buffers, workspaces of
libraries, the allocator's slack. Kernels are the CPU's, also for cuda, but for RMSNorm's. Compiled layers are counted
as uncompiled ones. The learned router is taken as balanced: each expert gets as many copies of tokens, or one more."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from meshtune.runners.measuring import COUNTED_STEPS
from meshtune.runners.processes.gang import die_with_parent
from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.fakes import FakeLiveTensors, alone
from meshtune.runners.trainer.job import JobMalformed, TrainerJob, parse_job, require_supported
from meshtune.runners.trainer.parallel.mesh import Mesh, build_mesh
from meshtune.runners.trainer.parallel.pipeline import stages_of
from meshtune.runners.trainer.parallel.sharding import local
from meshtune.runners.trainer.train import Trainer
from meshtune.runners.trainer_answers import ExactPeak
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.plan import Plan, Schedule
from meshtune.search_spaces.routing import rank_loads
from meshtune.search_spaces.stages import layers_of_chunk

# Passes of one layer and micro-batch; about 40 ms each and way, so that a direct run takes about 10 s.
MAX_PASSES = 100


@dataclass(frozen=True, slots=True)
class MemorySample:
    peak_bytes: int
    lasting_bytes: int
    parameters: int


def extend(
    job: TrainerJob, layers: float, run: Callable[[TrainerJob], MemorySample], *, extrapolate: bool | None = None
) -> tuple[MemorySample, bool, int]:
    """The sample of `job` on one rank, from as few and small runs as it takes. layers: see `_layers`. extrapolate: see
    exact_peak. Also returned: whether it was, and how many micro-batches were run."""
    plan = job.plan
    enough, stride = enough_micro_batches(plan)
    few = plan.grad_accum_steps if plan.grad_accum_steps <= enough + stride else enough
    # One layer alone says too little: its peak may lie in the optimizer's step or at the embedding (175 billion
    # parameters: 25 % too low), and with ZeRO 3 the next layer's weights are gathered while one computes.
    low, high = (_fewer(plan) + many * plan.recompute_interval for many in (2, 4))
    if extrapolate is None:
        extrapolate = layers * plan.vpp * few > MAX_PASSES and layers > low + high

    @cache
    def at(layers: int | None, micro_batches: int) -> MemorySample:
        return run(_sized(job, layers, micro_batches))

    def whole(micro_batches: int) -> MemorySample:
        if not extrapolate:
            return at(None, micro_batches)
        return _line(at(low, micro_batches), at(high, micro_batches), (layers - low) / (high - low))

    sample = whole(few)
    if few < plan.grad_accum_steps:
        # GPipe's slope has the activations of all layers in it, the others' just buffers and tokens.
        all_in_flight = plan.schedule is Schedule.GPIPE and plan.pp > 1
        some = high if extrapolate else low if layers > low else None
        start, next_one = (whole(count) if all_in_flight else at(some, count) for count in (few, few + stride))
        sample = _moved(sample, start, _line(start, next_one, (plan.grad_accum_steps - few) / stride))
    return sample, extrapolate, few


def enough_micro_batches(plan: Plan) -> tuple[int, int]:
    """From how many micro-batches on the peak is a straight line, and in which strides it is looked at.

    Of 1F1B only so many micro-batches are in flight, but torch keeps a receive buffer for every one; GPipe keeps the
    activations of all. One stage: the first, one between and the last. 1F1B: as many in flight as ever, gradients
    beside them, and one under way to a neighbour. Interleaved kinds go in rounds of pp, and are not shortened where
    these are uneven."""
    if plan.pp == 1 or plan.schedule is Schedule.GPIPE:
        return 3, 1
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return plan.pp + 3, 1
    return (2 * plan.pp, plan.pp) if plan.grad_accum_steps % plan.pp == 0 else (plan.grad_accum_steps, 1)


def _sized(job: TrainerJob, layers: int | None, micro_batches: int) -> TrainerJob:
    """layers: as `_layers`; None: the job's own. Uncompiled: the compiler's kernels need real devices."""
    plan = replace(job.plan, grad_accum_steps=micro_batches)
    ends = plan.first_stage_less_layers + plan.last_stage_less_layers
    model = job.model if layers is None else replace(job.model, layers=layers * plan.pp * plan.vpp - ends)
    return replace(job, plan=plan, model=model, compile=False, async_tp=False, knobs={})


def _line(one: MemorySample, other: MemorySample, way: float) -> MemorySample:
    """The point at `way` on the line through both: `one` at 0, `other` at 1."""
    return MemorySample(*(round(a + way * (b - a)) for a, b in zip(astuple(one), astuple(other), strict=True)))


def _moved(sample: MemorySample, start: MemorySample, end: MemorySample) -> MemorySample:
    """`sample`, by as much as `end` is away from `start`."""
    numbers = zip(astuple(sample), astuple(start), astuple(end), strict=True)
    return MemorySample(*(own + there - here for own, here, there in numbers))


def count_passes(job: TrainerJob, rank: int) -> float:
    """The passes of one layer and micro-batch that `exact_peak` will run: what its time follows from."""
    passes: list[float] = []

    def count(sized: TrainerJob) -> MemorySample:
        passes.append(_passes(sized))
        return MemorySample(0, 0, 0)

    extend(job, _layers(job, rank // (job.plan.world_size // job.plan.pp)), count)
    return sum(passes)


def _passes(job: TrainerJob) -> float:
    """Of one rank, on average."""
    return job.model.layers / job.plan.pp * job.plan.grad_accum_steps


def _pass_s(job: TrainerJob, rank: int) -> float:
    """The seconds of a pass, as one layer and as few micro-batches as may be take them here and now."""
    sized = _sized(job, _fewer(job.plan) + job.plan.recompute_interval, min(job.plan.grad_accum_steps, job.plan.pp))
    torch.set_num_threads(1)
    taken: list[float] = []
    with alone(sized, rank) as live:
        mesh = build_mesh(sized.plan, "cpu")
        for _ in range(2):  # the first one imports, too
            start = time.perf_counter()
            _run(sized, mesh, live())
            taken.append(time.perf_counter() - start)
    return min(taken) / _passes(sized)


def _layers(job: TrainerJob, stage: int) -> float:
    """Per model chunk: of one between the first and the last, where these differ; else of a rank of the stage, on
    average."""
    plan, layers = job.plan, job.model.layers
    if plan.first_stage_less_layers or plan.last_stage_less_layers:
        return (layers + plan.first_stage_less_layers + plan.last_stage_less_layers) / (plan.pp * plan.vpp)
    chunks = [layers_of_chunk(plan, layers, chunk) for chunk in stages_of(plan, stage)]
    return sum(map(len, chunks)) / len(chunks)


def _fewer(plan: Plan) -> int:
    """By how many layers the smallest chunk of the pipeline is smaller than the others."""
    return max(0, plan.first_stage_less_layers, plan.last_stage_less_layers)


def exact_peak(
    job: TrainerJob, rank: int, *, extrapolate: bool | None = None, ran: Callable[[float], None] = lambda passes: None
) -> ExactPeak:
    """Starts a process group of its own, so there must be none. extrapolate: over the layers; None: where it pays. ran:
    is told how many passes were run, as in `count_passes`. Raises InvalidValue."""
    require_estimable(job, rank)
    start = time.perf_counter()
    torch.set_num_threads(1)
    with alone(job, rank) as live:
        mesh = build_mesh(job.plan, "cpu")
        stage = mesh.pipeline_rank

        def run(sized: TrainerJob) -> MemorySample:
            sample = _run(sized, mesh, live())
            ran(_passes(sized))
            return sample

        sample, extrapolated, micro_batches = extend(job, _layers(job, stage), run, extrapolate=extrapolate)
    return ExactPeak(
        rank=rank,
        stage=stage,
        **asdict(sample),
        extrapolated=extrapolated,
        micro_batches=micro_batches,
        seconds=time.perf_counter() - start,
    )


def require_estimable(job: TrainerJob, rank: int = 0) -> None:
    """Raise InvalidValue naming everything that cannot be estimated."""
    require_supported(job)
    if not 0 <= rank < job.plan.world_size:
        told = f"must be at least 0 and below {job.plan.world_size} ranks, not {rank}"
        raise InvalidValue([Problem("rank", told)])


def representatives(job: TrainerJob) -> list[int]:
    """One rank of the first, the second, a middle and the last pipeline stage; the others do what one of these does.
    With skewed routing of each stage the one that gets the most tokens."""
    plan, model = job.plan, job.model
    per_stage = plan.world_size // plan.pp
    loads = (1.0,) if job.imbalance is None else rank_loads(model.experts, job.imbalance, plan.ep)
    fullest = loads.index(max(loads)) * plan.expert_tp
    return [stage * per_stage + fullest for stage in sorted({0, min(1, plan.pp - 1), plan.pp // 2, plan.pp - 1})]


def _run(job: TrainerJob, mesh: Mesh, live: FakeLiveTensors) -> MemorySample:
    """Two steps of a trainer, the second of which has the optimizer's states."""
    with FakeTensorMode(allow_non_fake_inputs=True), live:
        trainer = Trainer(job, mesh, torch.device("cpu"), Progress())
        for step in range(COUNTED_STEPS):
            tokens, targets = trainer.batch(step)
            trainer.step(tokens, targets)
            del tokens, targets
        parameters = sum(local(parameter).numel() for parameter in trainer.parameters())
        lasting = live.bytes
    return MemorySample(live.peak_bytes, lasting, parameters)


def main(argv: Sequence[str]) -> int:
    """Print a JSON list, one object per rank, as the last line. Exit status 2: the job cannot be estimated, said on
    stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m meshtune.runners.trainer.exact", description="Exact peak memory of ranks."
    )
    parser.add_argument("job", type=Path, help="the job file; - reads it from standard input")
    parser.add_argument("--rank", type=int, action="append", help="which ranks (default: one per kind of stage)")
    parser.add_argument("--progress", action="store_true", help="before that, lines of two numbers: done, of about (s)")
    arguments = parser.parse_args(argv)
    done, total, pass_s = 0.0, 0.0, 0.0

    def tell(passes: float) -> None:
        nonlocal done
        done += passes
        if arguments.progress:
            sys.stdout.write(f"{done * pass_s:g} {total * pass_s:g}\n")
            sys.stdout.flush()

    try:
        text = sys.stdin.read() if str(arguments.job) == "-" else arguments.job.read_text(encoding="utf-8")
        job = parse_job(text)
        ranks = arguments.rank or representatives(job)
        for rank in ranks:
            require_estimable(job, rank)
        if arguments.progress:
            die_with_parent()
            total, pass_s = sum(count_passes(job, rank) for rank in ranks), _pass_s(job, ranks[0])
            tell(0)
        peaks = [exact_peak(job, rank, ran=tell) for rank in ranks]
    except (OSError, JobMalformed, InvalidValue) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps([asdict(peak) for peak in peaks]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
