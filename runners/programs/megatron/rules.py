"""Rules of Megatron-LM's plans that no condition of the table can say: NVIDIA/Megatron-LM at d98e8a64."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtune.runners.programs.megatron.options import TABLE, WHOLE_VOCABULARY, MegatronOptions
from meshtune.runners.programs.megatron.pipeline_split import METHOD, METHODS, UNEVEN
from meshtune.runners.programs.table import capabilities
from meshtune.search_spaces.columns import EVEN_ALONE, RECOMPUTES, SCHEDULES, Capabilities, Constraint
from meshtune.search_spaces.plan import Recompute, Schedule
from meshtune.search_spaces.stages import layers_between

_FULL = RECOMPUTES.index(Recompute.FULL)
_INTERLEAVED = SCHEDULES.index(Schedule.INTERLEAVED)

# megatron/training/arguments.py, validate_args: seq-length should be a multiple of 2 * context-parallel-size.
_CONTEXT_SEQUENCE = Constraint(
    "megatron-context-sequence",
    "Megatron-LM cuts the sequence into two slices per context rank, whatever the kind of context parallelism",
    lambda c, s: (c["cp"] == 1) | (s.model.seq_len % (2 * c["cp"]) == 0),
    lambda p, s: f"2 * cp({p.cp}) does not divide seq_len({s.model.seq_len})",
)
# megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving, where a group of
# micro-batches (microbatch_group_size_per_vp_stage) is pp unless somebody sets it.
_INTERLEAVED_BATCHES = Constraint(
    "megatron-interleaved-batches",
    "Megatron-LM's interleaved schedule takes micro-batches in groups of pp",
    lambda c, s: (c["schedule"] != _INTERLEAVED) | (c["grad_accum_steps"] % c["pp"] == 0),
    lambda p, s: f"grad_accum_steps({p.grad_accum_steps}) is no multiple of pp({p.pp})",
)
# transformer_config.py, recompute_method block: so many layers of each chunk recompute, here one in recompute_interval.
_BLOCK_LAYERS = Constraint(
    "megatron-recompute-block",
    "Megatron-LM is told how many layers of a chunk recompute, so the interval divides them",
    lambda c, s: (
        (c["recompute"] != _FULL)
        | (c["recompute_interval"] == 1)
        | (
            (np.maximum(1, layers_between(c, s.model.layers)) % c["recompute_interval"] == 0)
            & (c["first_stage_less_layers"] == 0)
            & (c["last_stage_less_layers"] == 0)
        )
    ),
    lambda p, s: (
        f"recompute_interval({p.recompute_interval}) does not divide the layers of every chunk, "
        f"layers({s.model.layers}) / (pp({p.pp}) * vpp({p.vpp})), the first {p.first_stage_less_layers} and the last "
        f"{p.last_stage_less_layers} fewer"
    ),
)

# megatron/core/tensor_parallel/utils.py at d98e8a64, vocab_range_from_global_vocab_size.
_WHOLE_VOCABULARY = Constraint(
    "megatron-vocabulary",
    f"with {' or '.join(WHOLE_VOCABULARY)} nothing pads the vocabulary, so the tensor ranks must divide it",
    lambda c, s: s.model.vocab % c["tp"] == 0,
    lambda p, s: f"tp({p.tp}) does not divide vocab({s.model.vocab})",
)


def capabilities_of(options: MegatronOptions) -> Capabilities:
    """Which plans this Megatron can run. DeepSpeed's cuts its pipeline as a fork's argument says, where the user has
    that fork; stages that the user's arguments set are those of every plan."""
    given, more = options.given.keys(), dict[str, Any]()
    if options.through_deepspeed:
        rules = []
        more |= {"stage_splits": frozenset(METHODS)} if METHOD in given else {}
    else:
        rules = [_CONTEXT_SEQUENCE, _INTERLEAVED_BATCHES, _BLOCK_LAYERS]
        more |= {"stage_splits": EVEN_ALONE} if set(UNEVEN) & given else {}
        more |= {"zero_groups": frozenset[int]()} if TABLE.words("trial.one_instance") & given else {}
    rules += [_WHOLE_VOCABULARY] if set(WHOLE_VOCABULARY) & given else []
    return capabilities(TABLE, options.flavour, rules, **more)
