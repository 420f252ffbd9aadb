"""What of a job's settings is set in its process, and what of them is found there once it has run: knobs that did not
arrive show by the difference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch._inductor import config as inductor
from torch.backends import cuda as kernels
from torch.distributed.fsdp import FSDPModule

from meshtune.runners.report import seen_variable
from meshtune.runners.trainer.float8 import Float8Linear
from meshtune.runners.trainer.job import AttentionKernel, TrainerJob
from meshtune.runners.trainer.parallel.sharding import DenseAndExpertAdamW, FlatAdamW
from meshtune.runners.trainer.train import Trainer, selective_kind
from meshtune.search_spaces.knob_values import KnobValue


def choose_attention(kernel: AttentionKernel) -> None:
    """Let torch's attention run this kernel alone, for the rest of the process. On a CPU it asks the same switches."""
    if kernel is AttentionKernel.AUTO:
        return
    kernels.enable_flash_sdp(kernel is AttentionKernel.FLASH)
    kernels.enable_mem_efficient_sdp(kernel is AttentionKernel.EFFICIENT)
    kernels.enable_math_sdp(kernel is AttentionKernel.MATH)
    kernels.enable_cudnn_sdp(kernel is AttentionKernel.CUDNN)


def seen_settings(
    job: TrainerJob, trainer: Trainer, ran: Collection[str], environment: Mapping[str, str]
) -> dict[str, KnobValue | None]:
    """The knobs that the job was told, by name, as its process has them. ran: the attention kernels. environment: as
    the process found it when it began."""
    seen: dict[str, KnobValue | None] = {}
    for name, knob in job.knobs.items():
        if knob.way == "env":
            reader: Any = {"place": knob.place, "text": knob.text, "value": knob.value, "texts": knob.texts}
            seen[name] = seen_variable(reader, environment)
        elif knob.way == "option":
            seen[name] = _seen(knob.place, job, trainer, ran)
    return seen


def _seen(option: str, job: TrainerJob, trainer: Trainer, ran: Collection[str]) -> KnobValue:
    layers: list[Any] = list(trainer.first_chunk.layer_list())
    if option == "compile":
        return any(layer.compiled is not None or layer.compiled_attention is not None for layer in layers)
    if option == "async_tp":
        return bool(inductor._micro_pipeline_tp)
    if option == "threads":
        return torch.get_num_threads()
    if option == "dtype":
        # What products are computed in: FSDP2's own copy of the weights, else the weights.
        model: Any = trainer.first_chunk
        mixed = model._get_fsdp_state()._mp_policy.param_dtype if isinstance(model, FSDPModule) else None
        return str(mixed or trainer.parameters()[0].dtype).removeprefix("torch.")
    if option == "attention":
        kernels_ran = "+".join(sorted({kernel.removesuffix("_for_cpu") for kernel in ran}))
        return str(job.attention) if job.attention is AttentionKernel.AUTO or not ran else kernels_ran
    if option == "selective":
        return str(selective_kind(trainer.first_chunk))
    if option == "loss_chunks":
        return getattr(trainer.first_chunk.head, "chunks", job.loss_chunks)  # of a pipeline another rank has it
    if option == "float8":
        return any(isinstance(module, Float8Linear) for module in layers[0].modules())
    if option == "gather_ahead":
        optimizer = trainer.optimizer
        return not isinstance(optimizer, (DenseAndExpertAdamW, FlatAdamW)) or optimizer.gathers_ahead
    # Before the last layers there are fewer.
    wanted = min(job.prefetch, len(layers) - 1)
    ahead = len(layers[0]._get_fsdp_state()._states_to_forward_prefetch) if isinstance(layers[0], FSDPModule) else 0
    return job.prefetch if ahead == wanted else ahead
