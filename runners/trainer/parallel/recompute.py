"""Which activations of a layer the backward pass computes again (Chen et al. 2016; Korthikanti et al. 2022).

full: all but the layer's input. selective: what is cheap (norms, activation functions, rotations, casts); of a mixture
of experts, inside of the experts. Split backward passes run full twice, and selective not at all (see support)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshtune.runners.trainer.blocks import Mixture
from meshtune.runners.trainer.model import Transformer
from meshtune.search_spaces.plan import Recompute

_ATEN, _COLLECTIVES = torch.ops.aten, torch.ops._c10d_functional
# Matrix products, the fused attention kernels, and collectives. All-gathers are not among them: their results are as
# many times larger than what this rank holds as there are ranks, so they are repeated (Korthikanti et al., 4.2.2).
_KEPT = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.bmm.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
        _COLLECTIVES.reduce_scatter_tensor.default,
        _COLLECTIVES.all_reduce.default,
        _COLLECTIVES.all_to_all_single.default,
    }
)


def recompute_layers(model: Transformer, kind: Recompute, interval: int) -> None:
    """Let every `interval`-th layer of the whole model, counted from layer 0, recompute."""
    if kind is Recompute.NONE:
        return
    # There is no dropout, so no random state to restore.
    run = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if kind is Recompute.SELECTIVE:
        run = partial(run, context_fn=partial(create_selective_checkpoint_contexts, _policy))
    for index, layer in zip(model.layers, model.layer_list(), strict=True):
        if int(index) % interval:
            continue
        if kind is Recompute.SELECTIVE and isinstance(layer.feed_forward, Mixture):
            # FSDP2 may wrap the experts on their own; what it does there must not be recorded (it differs next time).
            layer.recompute_attention = run
            layer.feed_forward.experts.recompute = run
        else:
            layer.recompute = run


def _policy(_: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
