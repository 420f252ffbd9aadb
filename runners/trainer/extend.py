"""A large job's memory from a few of its layers and micro-batches: both peaks are straight lines, beyond a first bend.

Layers: each adds its weights, states and activations, whatever the others do. Micro-batches: of 1F1B and its kin only
so many are in flight, but torch keeps a receive buffer for every one of them, so the peak still grows, slowly; GPipe
keeps the activations of all. Not for models whose layers differ. Knows no torch: what runs a job is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from runners.trainer.job import Job
from search_spaces.plan import Plan, Schedule

# Passes of one layer and micro-batch; about 40 ms each and way, so that a direct run takes about 10 s.
MOST_PASSES = 80


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run found."""

    peak_bytes: int
    lasting_bytes: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a job is run. layers: per model chunk; None: the job's own."""

    layers: int | None
    micro_batches: int


@dataclass(frozen=True, slots=True)
class Extended:
    """The job's sample. extrapolated: over its layers. micro_batches: how many of its own were run."""

    sample: Sample
    extrapolated: bool
    micro_batches: int


def extend(job: Job, pipeline_rank: int, run: Callable[[Job], Sample], *, extrapolate: bool | None = None) -> Extended:
    """The sample of `job` on a pipeline rank, from as few and small runs as it takes. extrapolate: see exact_peak."""
    plan = job.plan
    layers = _layers_per_chunk(job, pipeline_rank)
    enough, stride = enough_micro_batches(plan)
    few = plan.grad_accum_steps if plan.grad_accum_steps <= enough + stride else enough
    if extrapolate is None:
        extrapolate = layers * plan.vpp * few > MOST_PASSES and layers > 4 * plan.recompute_interval

    def at(micro_batches: int, *, whole: bool) -> Sample:
        if not whole:
            return run(_sized(job, Size(plan.recompute_interval, micro_batches)))
        if not extrapolate:
            return run(_sized(job, Size(None, micro_batches)))
        # From two on: with ZeRO 3 the next layer's weights are gathered while one computes.
        low, high = 2 * plan.recompute_interval, 4 * plan.recompute_interval
        ends = (run(_sized(job, Size(count, micro_batches))) for count in (low, high))
        return _line(next(ends), next(ends), (layers - low) / (high - low))

    sample = at(few, whole=True)
    if few < plan.grad_accum_steps:
        # GPipe's slope has the activations of all layers in it, the others' just buffers and tokens.
        whole = plan.schedule is Schedule.GPIPE and plan.pp > 1
        start = sample if whole else at(few, whole=False)
        further = _line(start, at(few + stride, whole=whole), (plan.grad_accum_steps - few) / stride)
        sample = _moved(sample, start, further)
    return Extended(sample, extrapolate, few)


def enough_micro_batches(plan: Plan) -> tuple[int, int]:
    """From how many micro-batches on the peak is a straight line, and in which strides it is looked at.

    One stage: the first, one between and the last. 1F1B: all stages have as many in flight as they ever have, and
    gradients beside them. Interleaved kinds go in rounds of pp, and are not shortened where their rounds are uneven.
    """
    if plan.pp == 1:
        return 3, 1
    if plan.schedule is Schedule.GPIPE:
        return 3, 1
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return plan.pp + 2, 1
    return (2 * plan.pp, plan.pp) if plan.grad_accum_steps % plan.pp == 0 else (plan.grad_accum_steps, 1)


def _layers_per_chunk(job: Job, pipeline_rank: int) -> float:
    from runners.trainer.pipeline import cut_layers, stages_of

    plan = job.plan
    held = stages_of(plan, pipeline_rank)
    return sum(len(cut_layers(job.model.layers, plan.pp * plan.vpp, stage)) for stage in held) / len(held)


def _sized(job: Job, size: Size) -> Job:
    plan = replace(job.plan, grad_accum_steps=size.micro_batches)
    if size.layers is None:
        return replace(job, plan=plan)
    return replace(job, plan=plan, model=replace(job.model, layers=size.layers * plan.pp * plan.vpp))


def _line(one: Sample, other: Sample, way: float) -> Sample:
    """The point at `way` on the line through both: `one` at 0, `other` at 1."""
    return Sample(
        round(one.peak_bytes + way * (other.peak_bytes - one.peak_bytes)),
        round(one.lasting_bytes + way * (other.lasting_bytes - one.lasting_bytes)),
        round(one.parameters + way * (other.parameters - one.parameters)),
    )


def _moved(sample: Sample, start: Sample, end: Sample) -> Sample:
    """`sample`, by as much as `end` is away from `start`."""
    return Sample(
        sample.peak_bytes + end.peak_bytes - start.peak_bytes,
        sample.lasting_bytes + end.lasting_bytes - start.lasting_bytes,
        sample.parameters,
    )
