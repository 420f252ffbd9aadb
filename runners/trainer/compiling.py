"""Lets torch.compile fuse what layers and the loss compute: layer by layer as torchtitan does, one graph for all.

Compiled is what happens inside of a layer, so FSDP2 and the pipeline wrap it as they wrap an uncompiled one. A graph
must be whole: what the compiler cannot follow ends the job, and is never left out silently."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch._inductor import config as inductor

from meshtune.runners.trainer.head import to_gradient
from meshtune.runners.trainer.job import TrainerJob, compile_obstacle
from meshtune.runners.trainer.mixture import Mixture
from meshtune.runners.trainer.model import Transformer
from meshtune.search_spaces.cluster import DeviceKind


def compiles(job: TrainerJob) -> bool:
    return job.compile and not compile_obstacle(job)


def note(job: TrainerJob) -> str:
    """What the reader of a result should know: what was not compiled though it was asked for; empty for nothing."""
    if not job.compile:
        return ""
    if why := compile_obstacle(job):
        return f"not compiled: {why}"
    return "compiled but for the experts, whose numbers of tokens are data" if job.model.experts else ""


def compile_layers(model: Transformer, job: TrainerJob, tensor_ranks: dist.ProcessGroup) -> None:
    if not compiles(job):
        return
    if job.async_tp and job.plan.tp > 1:
        # Asynchronous tensor parallelism (torchtitan's `maybe_enable_async_tp`): inductor cuts a gather and the
        # products after it, or a product and the sum after it, into pieces that overlap. It has not run: it needs
        # CUDA's symmetric memory. Tested is that inductor's patterns find our collectives.
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        inductor._micro_pipeline_tp = True
        enable_symm_mem_for_group(tensor_ranks.group_name)
    if job.device is DeviceKind.CPU:
        # Else each rank starts processes to compile in, beyond the cap on its memory.
        inductor.compile_threads = 1
    for layer in model.layer_list():
        if isinstance(layer.feed_forward, Mixture):
            layer.compiled_attention = _compiled(layer.run_attention)
        else:
            layer.compiled = _compiled(layer.run)
    if model.head is not None:
        model.head.to_gradient = _compiled(to_gradient)


def _compiled(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(run, fullgraph=True, dynamic=False)
