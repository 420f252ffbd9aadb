"""The built-in trainer refuses, before any process group exists, what it cannot run as asked. Imports no torch. What
fits into memory is not judged here."""

from __future__ import annotations

from meshtune.runners.trainer.job import Dtype, Job, Router
from meshtune.search_spaces.checks import Checks
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule


def require_supported(job: Job) -> None:
    """Raise InvalidValue naming everything that the trainer cannot run."""
    checks = Checks()
    _check_features(job, checks)
    _check_shapes(job, checks)
    checks.done()


def _check_features(job: Job, checks: Checks) -> None:
    plan = job.plan
    on_cpu = job.device is DeviceKind.CPU
    checks.require(
        not (on_cpu and plan.context is ContextParallel.RING),
        "plan.context",
        "ring attention runs on cuda only: torch has no ring over its CPU attention kernel",
    )
    checks.require(
        not (on_cpu and job.dtype is Dtype.FLOAT16),
        "dtype",
        "float16 runs on cuda only; on cpu use bfloat16 or float32",
    )
    checks.require(
        plan.zero_stage < 3 or not plan.schedule.splits_backward,
        "plan.zero_stage",
        f"zero_stage({plan.zero_stage}) with schedule({plan.schedule}) would train wrongly without an error: "
        "split backward passes meet resharded weights",
    )
    checks.require(
        plan.recompute is not Recompute.SELECTIVE or not plan.schedule.splits_backward,
        "plan.recompute",
        f"selective with schedule({plan.schedule}): torch allows one backward pass of what is recomputed selectively",
    )
    checks.require(
        plan.schedule.interleaves == (plan.vpp > 1) and (plan.pp > 1 or plan.vpp == 1),
        "plan.vpp",
        f"vpp({plan.vpp}) does not go with schedule({plan.schedule}) and pp({plan.pp})",
    )
    checks.require(
        plan.schedule is not Schedule.ZBV or plan.vpp == 2, "plan.vpp", f"zbv needs vpp(2), not vpp({plan.vpp})"
    )


def _check_shapes(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    for name in ("heads", "ffn"):
        size = getattr(model, name)
        checks.require(size % plan.tp == 0, "plan.tp", f"tp({plan.tp}) does not divide {name}({size})")
    checks.require(
        model.kv_heads % plan.tp == 0 or plan.tp % model.kv_heads == 0,
        "plan.tp",
        f"tp({plan.tp}) and kv_heads({model.kv_heads}): neither divides the other",
    )
    slices = plan.cp * (2 if plan.context is ContextParallel.RING else 1)
    checks.require(
        model.seq_len % slices == 0, "plan.cp", f"cp({plan.cp}) does not cut seq_len({model.seq_len}) into {slices}"
    )
    checks.require(
        not plan.sequence_parallel or model.seq_len // plan.cp % plan.tp == 0,
        "plan.tp",
        f"tp({plan.tp}) does not divide seq_len({model.seq_len}) / cp({plan.cp})",
    )
    if plan.context is ContextParallel.ULYSSES:
        for name in ("heads", "kv_heads"):
            size = getattr(model, name)
            checks.require(
                size % (plan.tp * plan.cp) == 0,
                "plan.cp",
                f"tp({plan.tp}) * cp({plan.cp}) = {plan.tp * plan.cp} does not divide {name}({size})",
            )
    _check_pipeline(job, checks)
    _check_experts(job, checks)


def _check_pipeline(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    stages = plan.pp * plan.vpp
    checks.require(
        stages <= model.layers, "plan.pp", f"pp({plan.pp}) * vpp({plan.vpp}) is above layers({model.layers})"
    )
    # torch's Schedule1F1B refuses fewer micro-batches than stages; GPipe does not.
    checks.require(
        plan.schedule is Schedule.GPIPE or plan.pp == 1 or plan.grad_accum_steps >= plan.pp,
        "plan.grad_accum_steps",
        f"{plan.schedule} needs grad_accum_steps({plan.grad_accum_steps}) of at least pp({plan.pp})",
    )
    rounds = max(1, plan.grad_accum_steps // plan.pp)
    checks.require(
        plan.schedule not in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE) or plan.grad_accum_steps % rounds == 0,
        "plan.grad_accum_steps",
        f"{plan.schedule} needs grad_accum_steps({plan.grad_accum_steps}) to be a multiple of its {rounds} rounds",
    )


def _check_experts(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    checks.require(plan.dp % plan.ep == 0, "plan.ep", f"ep({plan.ep}) does not divide dp({plan.dp})")
    checks.require(
        plan.ep == 1 or (model.experts > 0 and model.experts % plan.ep == 0),
        "plan.ep",
        f"ep({plan.ep}) does not divide experts({model.experts})" if model.experts else "the model has no experts",
    )
    copies = model.seq_len // plan.cp * model.top_k
    checks.require(
        model.experts == 0 or job.router is Router.LEARNED or copies % model.experts == 0,
        "router",
        f"experts({model.experts}) do not share seq_len({model.seq_len}) / cp({plan.cp}) * top_k({model.top_k}) = "
        f"{copies} tokens evenly",
    )
