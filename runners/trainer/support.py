"""The built-in trainer refuses, before any process group exists, what it cannot run as asked.

It never runs something else instead: a number measured under another plan than the one named would be worse than
none. Imports no torch. What fits into memory is not judged here.
"""

from __future__ import annotations

from runners.trainer.job import Job
from search_spaces.checks import Checks
from search_spaces.plan import Recompute, Schedule


def require_supported(job: Job) -> None:
    """Raise InvalidValue naming everything about `job` that the trainer cannot run."""
    checks = Checks()
    _check_features(job, checks)
    _check_shapes(job, checks)
    checks.done()


def _check_features(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    for name in ("cp", "ep", "vpp"):
        degree = getattr(plan, name)
        checks.require(degree == 1, f"plan.{name}", f"the built-in trainer runs {name} 1 only, not {degree}")
    checks.require(
        plan.recompute is Recompute.NONE,
        "plan.recompute",
        f"the built-in trainer runs recompute none only, not {plan.recompute}",
    )
    checks.require(
        plan.schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B),
        "plan.schedule",
        f"the built-in trainer runs gpipe and 1f1b only, not {plan.schedule}",
    )
    checks.require(
        model.experts == 0, "model.experts", f"the built-in trainer runs dense models only, not {model.experts} experts"
    )


def _check_shapes(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    for name in ("heads", "ffn", "seq_len"):
        size = getattr(model, name)
        checks.require(size % plan.tp == 0, "plan.tp", f"tp({plan.tp}) does not divide {name}({size})")
    checks.require(
        model.kv_heads % plan.tp == 0 or plan.tp % model.kv_heads == 0,
        "plan.tp",
        f"tp({plan.tp}) and kv_heads({model.kv_heads}): neither divides the other",
    )
    checks.require(plan.pp <= model.layers, "plan.pp", f"pp({plan.pp}) is above layers({model.layers})")
    # torch's Schedule1F1B refuses fewer micro-batches than stages; GPipe does not.
    checks.require(
        plan.schedule is not Schedule.ONE_F_ONE_B or plan.pp == 1 or plan.grad_accum_steps >= plan.pp,
        "plan.grad_accum_steps",
        f"1f1b needs grad_accum_steps({plan.grad_accum_steps}) of at least pp({plan.pp})",
    )
