"""Cuts the model into chunks and runs micro-batches through them: a plain loop on one pipeline rank, else one of
torch's schedules. Gradients are reduced over the replicas as late as the ZeRO stage allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from meshtune.runners.trainer.compat import skip_first_exchange
from meshtune.runners.trainer.failure import Phase, Progress
from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel.mesh import Mesh
from meshtune.search_spaces.plan import Plan, Schedule


def stages_of(plan: Plan, rank: int) -> tuple[int, ...]:
    """The stages that a pipeline rank holds: every pp-th, or in a V one on the way down and one on the way up."""
    if plan.schedule is Schedule.ZBV and plan.pp > 1:
        return rank, 2 * plan.pp - 1 - rank
    return tuple(rank + turn * plan.pp for turn in range(plan.vpp))


_SCHEDULES: dict[Schedule, Callable[..., Any]] = {
    Schedule.GPIPE: ScheduleGPipe,
    Schedule.ONE_F_ONE_B: Schedule1F1B,
    Schedule.INTERLEAVED: ScheduleInterleaved1F1B,
    Schedule.ZERO_BUBBLE: ScheduleInterleavedZeroBubble,
    Schedule.ZBV: ScheduleZBVZeroBubble,
}


class AccumulatingLoop:
    """One stage: micro-batch after micro-batch.

    run: leave the gradients on the parameters; return the sum of the losses, 0 where this rank sees none."""

    def __init__(self, model: Transformer, plan: Plan) -> None:
        self._model, self._plan = model, plan

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=tokens.device)
        size = self._plan.micro_batch_size
        pairs = list(zip(torch.split(tokens, size), torch.split(targets, size), strict=True))
        for index, (some_tokens, some_targets) in enumerate(pairs):
            self._prepare_replicas(is_last=index == len(pairs) - 1)
            loss = self._model(some_tokens, some_targets)
            loss.backward()
            total += loss.detach().sum()
        return total

    def _prepare_replicas(self, *, is_last: bool) -> None:
        if isinstance(self._model, FSDPModule):
            stage = self._plan.zero_stage
            # From stage 2 on gradients are kept sharded, so every micro-batch's are reduced (Rajbhandari et al. 2020).
            self._model.set_requires_gradient_sync(is_last or stage >= 2)
            # Between groups that each shard the whole, gradients are summed once a step (MiCS, Zhang et al. 2022).
            self._model.set_requires_all_reduce(is_last)
            self._model.set_is_last_backward(is_last)
            # Stage 2 keeps its weights whole for all of the step.
            self._model.set_reshard_after_backward(is_last or stage == 3)


class Pipeline:
    """More stages: torch's schedule. Over FSDP2 it reduces gradients and reshards weights after the last micro-batch's
    backward pass only, so ZeRO 2 and 3 hold whole gradients of a stage until then."""

    def __init__(self, models: Sequence[Transformer], plan: Plan, mesh: Mesh, device: torch.device) -> None:
        held = stages_of(plan, mesh.pipeline_rank)
        count, group = plan.pp * plan.vpp, mesh.pp.get_group()
        for model in models if plan.schedule.splits_backward else ():
            model.register_forward_hook(_with_gradient)
        stages = [
            skip_first_exchange(PipelineStage(model, stage, count, device, group=group))
            for model, stage in zip(models, held, strict=True)
        ]
        self._schedule = _SCHEDULES[plan.schedule](
            stages if plan.schedule.interleaves else stages[0],
            plan.grad_accum_steps,
            loss_fn=lambda loss, _: loss,  # the last stage returns it: see Head
            scale_grads=False,
        )
        self._is_first, self._is_last = 0 in held, count - 1 in held

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        arguments = (tokens,) if self._is_first else ()
        # For its stage, cut into micro-batches as the tokens are, and for the schedule's own loss.
        targets_here = {"targets": targets, "target": targets, "losses": losses} if self._is_last else {}
        self._schedule.step(*arguments, **targets_here)
        return (
            torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros((), device=tokens.device)
        )


def _with_gradient(_: nn.Module, __: object, output: Tensor) -> Tensor:
    """Let the next stage's input have a gradient, by which torch's split backward pass finds weights."""
    return output if output.requires_grad else output.detach().requires_grad_()


def note_passes(models: Sequence[Transformer], progress: Progress) -> None:
    """Keep `progress` at what the rank computes, from within a schedule too. Whatever lies between a forward pass and
    the next one counts as backward."""

    def enter(*_: object) -> None:
        progress.phase = Phase.FORWARD

    def leave(*_: object) -> None:
        progress.phase = Phase.BACKWARD

    for model in models:
        model.register_forward_pre_hook(enter, prepend=True)
        model.register_forward_hook(leave)
