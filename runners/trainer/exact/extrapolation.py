"""A large job's memory from a few of its layers and micro-batches: both peaks are straight lines, beyond a first bend.

Each layer adds its weights, states and activations. Of 1F1B only so many micro-batches are in flight, but torch keeps a
receive buffer for every one; GPipe keeps the activations of all. Not for models whose layers differ. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from meshtune.runners.trainer.job import Job
from meshtune.search_spaces.plan import Plan, Schedule

# Passes of one layer and micro-batch; about 40 ms each and way, so that a direct run takes about 10 s.
MAX_PASSES = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run found."""

    peak_bytes: int
    lasting_bytes: int
    parameters: int


def extend(
    job: Job, layers: float, run: Callable[[Job], Sample], *, extrapolate: bool | None = None
) -> tuple[Sample, bool, int]:
    """The sample of `job` on one rank, from as few and small runs as it takes. layers: the rank's, per model chunk, on
    average. extrapolate: see exact_peak. Also returned: whether it was, and how many micro-batches were run."""
    plan = job.plan
    enough, stride = enough_micro_batches(plan)
    few = plan.grad_accum_steps if plan.grad_accum_steps <= enough + stride else enough
    # One layer alone says too little: its peak may lie in the optimizer's step or at the embedding (175 billion
    # parameters: 25 % too low), and with ZeRO 3 the next layer's weights are gathered while one computes.
    low, high = 2 * plan.recompute_interval, 4 * plan.recompute_interval
    if extrapolate is None:
        extrapolate = layers * plan.vpp * few > MAX_PASSES and layers > low + high

    @cache
    def at(layers: int | None, micro_batches: int) -> Sample:
        return run(_sized(job, layers, micro_batches))

    def whole(micro_batches: int) -> Sample:
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

    One stage: the first, one between and the last. 1F1B: as many in flight as ever, gradients beside them, and one
    under way to a neighbour. Interleaved kinds go in rounds of pp, and are not shortened where these are uneven."""
    if plan.pp == 1 or plan.schedule is Schedule.GPIPE:
        return 3, 1
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return plan.pp + 3, 1
    return (2 * plan.pp, plan.pp) if plan.grad_accum_steps % plan.pp == 0 else (plan.grad_accum_steps, 1)


def _sized(job: Job, layers: int | None, micro_batches: int) -> Job:
    """layers: per model chunk; None: the job's own."""
    plan = replace(job.plan, grad_accum_steps=micro_batches)
    model = job.model if layers is None else replace(job.model, layers=layers * plan.pp * plan.vpp)
    return replace(job, plan=plan, model=model)


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
