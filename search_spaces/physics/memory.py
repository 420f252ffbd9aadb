"""Device memory of plans, by part, at the fullest moment of the fullest rank.

Model states by ZeRO stage as in Rajbhandari et al. 2020; activations as in `search_spaces.physics.activations`, times
the micro-batches that a pipeline schedule has in flight; where layers are of several kinds, each stage's own. The
fullest rank is looked for among the stages that differ (`stages_apart`), the fullest moment among the loss, the
backward pass of a layer, and the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

import numpy as np

from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import (
    SCHEDULES,
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    sharding_ranks,
    zero_groups,
)
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.activations import FLOAT32_BYTES, LayerBytes, layer_bytes, tokens_per_rank
from meshtune.search_spaces.physics.constants import Constants
from meshtune.search_spaces.physics.framework_profiles import FEWEST_CHUNK_TOKENS, FrameworkProfile, Reports
from meshtune.search_spaces.physics.held import Held, held_of
from meshtune.search_spaces.physics.recipes import adapted, at_fullest, base_bytes, in_rows, trained_share
from meshtune.search_spaces.physics.rollout import engine_of, widest_bytes
from meshtune.search_spaces.physics.training import COMMUNICATOR_BYTES, USABLE_SHARE, Training, outside_bytes
from meshtune.search_spaces.plan import Schedule
from meshtune.search_spaces.recipe import Offload
from meshtune.search_spaces.stages import stages_apart


class Phase(StrEnum):
    """Of a training. FIRST_STEP: its passes, before the optimizer has made its state, and that step itself. STEADY: an
    update's passes and step. GENERATION, LOG_PROBS: before updates, of reinforcement learning."""

    LOAD = "load"
    FIRST_STEP = "first_step"
    STEADY = "steady"
    CHECKPOINT = "checkpoint"
    GENERATION = "generation"
    LOG_PROBS = "log_probs"


class MemoryPart(StrEnum):
    """Parts of a rank's memory at its fullest moment.

    ACTIVATIONS: kept for the backward passes of all micro-batches in flight, with the working set of the layer at hand.
    LOGITS: of the last stage's loss, with the gradients made there. GATHERED: ZeRO-3's whole weights of the units at
    hand, and reductions' buffers. BUFFERS: receive buffers, libraries' workspaces, the device's context, the
    allocator's slack. ENGINE: of inference; what its share lacks to start counts as if it were there.
    """

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    GATHERED = "gathered"
    BUFFERS = "buffers"
    ENGINE = "engine"


Parts = dict[MemoryPart, FloatColumn]

# The columns' values of the schedules that compute gradients of inputs and of weights in separate passes.
SPLITTING = [index for index, schedule in enumerate(SCHEDULES) if schedule.splits_backward]
# The part of `memory_offset_bytes` that is tensors: workspaces of cuBLAS, 32 MiB each on Hopper; the rest is the
# allocator's.
WORKSPACES_SHARE = 0.25


def memory_parts(training: Training, columns: Columns, constants: Constants) -> Parts:
    """Of the fullest phase."""
    return fullest(list(parts_by_phase(training, columns, constants).values()))


def parts_by_phase(training: Training, columns: Columns, constants: Constants) -> dict[Phase, Parts]:
    """Of later steps; where rows are generated, of an update (STEADY) and of what comes before it."""
    rollout, every = training.recipe.rollout, columns["micro_batch_size"] * columns["grad_accum_steps"]
    every = every * training.recipe.rows_per_sample * (rollout.updates if rollout else 1)
    columns = in_rows(training.recipe, columns, training.model.seq_len)
    stages = stages_apart(training.model, columns)
    parts = fullest([stage_parts(training, columns, constants, stage) for stage in stages])
    parts = {part: value * constants.memory_factor for part, value in parts.items()}
    if rollout is None:
        return {Phase.STEADY: parts}
    framework, engine, nothing = training.framework, engine_of(training, rollout), np.zeros(len(columns["pp"]))
    held = held_of(training, framework, columns, np.zeros_like(columns["pp"]))
    sharded = (columns["zero_stage"] == 3) & (columns["dp"] * columns["cp"] > 1)
    # A model that generates by itself has its weights there, unless they are sharded.
    taken = engine.share - engine.weights * (~sharded & (rollout.share == 0))
    shared = rollout.devices == 0
    stays = {MemoryPart.ENGINE: nothing + shared * (engine.stays + taken * (not rollout.sleeps))}
    keeps = {
        MemoryPart.WEIGHTS: not rollout.weights_leave,
        MemoryPart.OPTIMIZER: not rollout.optimizer_leaves,
        # Products may add up into buffers that are made once (Megatron-Core's main gradients).
        MemoryPart.GRADIENTS: framework.fused_accumulation and not rollout.weights_leave,
        MemoryPart.BUFFERS: True,
    }
    left = {part: size * keeps.get(part, False) for part, size in parts.items()} | stays
    generation = {part: size * shared for part, size in left.items()} | {MemoryPart.ENGINE: engine.stays + taken}
    short = engine.short - np.sum(list(generation.values()), axis=0)
    generation[MemoryPart.ENGINE] = generation[MemoryPart.ENGINE] + np.maximum(short, 0.0)
    row, tp, rows = training.model.seq_len / columns["cp"], columns["tp"], columns["micro_batch_size"]
    if rollout.log_prob_rows or rollout.log_prob_tokens:
        some = np.minimum(rollout.log_prob_rows, every)
        rows = at_fullest(training.recipe, some, training.model.seq_len, rollout.log_prob_tokens / row, every)
    # Of a logit the product, and a copy in float32 (OpenRLHF 0.11, models/actor.py; NeMo-RL, distributed/
    # model_utils.py; verl's kernel needs none, but its entropy one of 16 bits, workers/actor/dp_actor.py).
    logits = np.minimum(rows * row, FEWEST_CHUNK_TOKENS if framework.kept.loss_chunks else np.inf)
    logits = logits * framework.padded_vocab(training.model, tp) / tp * (framework.activation_bytes + FLOAT32_BYTES)
    log_probs = left | {
        MemoryPart.WEIGHTS: parts[MemoryPart.WEIGHTS],
        MemoryPart.ACTIVATIONS: rows * row * widest_bytes(training.model, tp) * constants.activation_factor,
        MemoryPart.LOGITS: logits * constants.activation_factor,
        MemoryPart.GATHERED: _gathered(training, columns, held, at_loss=False),
    }
    return {Phase.STEADY: parts | stays, Phase.GENERATION: generation, Phase.LOG_PROBS: log_probs}


def phases(training: Training, columns: Columns, constants: Constants) -> dict[Phase, FloatColumn]:
    """Bytes at the peak of each phase. A checkpoint is read, and written, tensor by tensor, whole ones where ZeRO 3
    shards them or they are quantized; a code that keeps a float32 master makes its state before the first step, torch's
    optimizers in it."""
    by_phase, framework = parts_by_phase(training, columns, constants), training.framework
    parts = by_phase[Phase.STEADY]
    held = held_of(training, framework, columns, np.zeros_like(columns["pp"]))
    lasting = parts[MemoryPart.WEIGHTS] + parts[MemoryPart.BUFFERS] + parts.get(MemoryPart.ENGINE, 0.0)
    states = lasting + parts[MemoryPart.OPTIMIZER]
    sharded = np.where(columns["zero_stage"] == 3, np.maximum(held.gathered_unit, held.gathered_ends), 0.0)
    quantized = 0 < training.recipe.base_bits < 16
    unit = np.maximum(sharded, training.model.layer_parameters * framework.activation_bytes * quantized)
    peaks = {phase: np.sum(list(own.values()), axis=0) for phase, own in by_phase.items()}
    steady = peaks[Phase.STEADY]
    lazy = 0.0 if framework.master_bytes else parts[MemoryPart.OPTIMIZER]
    return peaks | {
        Phase.LOAD: lasting + unit,
        Phase.FIRST_STEP: np.maximum(steady - lazy, states + parts[MemoryPart.GRADIENTS]),
        Phase.CHECKPOINT: states + sharded,
    }


def stage_parts(training: Training, columns: Columns, constants: Constants, stage: IntColumn) -> Parts:
    """Bytes by part of one pipeline rank per plan."""
    model, framework, recipe = training.model, training.framework, training.recipe
    if training.cluster.device.kind is DeviceKind.CUDA and framework.probed:
        # torch's norm is one kernel there, which keeps its input and output alone.
        framework = replace(framework, kept=replace(framework.kept, norm_bytes=0.0))
    held = held_of(training, framework, columns, stage)
    states = _states(training, framework, columns, held)
    kinds = layer_bytes(model, framework, columns, constants, recipe)
    layer, kept_by_kind = kinds[0], np.stack([kind.kept for kind in kinds])
    chunks = (np.sum(part * kept_by_kind, axis=0) for part in held.kinds)
    tokens = tokens_per_rank(model, columns)
    nothing = np.zeros(len(tokens))

    splits = np.isin(columns["schedule"], SPLITTING) & (columns["pp"] > 1)
    # The number of chunks whose gradients wait for the pass of the weights, as seen of torch's schedules: they put it
    # off by the rank's number.
    waiting = np.where(splits, np.minimum(stage + 2, columns["grad_accum_steps"] * columns["vpp"]), 0)
    results = np.sum([own * kind.products for own, kind in zip(held.kinds.rank, kinds, strict=True)], axis=0)
    kept = kept_in_flight(columns, stage, *chunks) + waiting * results / columns["vpp"]
    computed = [(own > 0) * (kind.again + kind.gradients) for own, kind in zip(held.kinds.rank, kinds, strict=True)]
    # Layers before the first that is trained keep nothing, where no gradient is wanted below them.
    if recipe.frozen_embedding:
        kept = kept * trained_share(model, recipe, columns, stage)
    backward = np.where(held.layers > 0, kept + np.maximum.reduce(computed), 0.0)
    head_gradient = _head_gradient(training, framework, columns)
    logits = _loss(model, framework, columns, head_gradient)
    if framework.kept.loss_chunks:
        losses = _losses_at_once(framework, columns) - 1 + np.where(splits, np.maximum(2, stage + 1), 0)
        losses = np.where(held.is_last, np.minimum(losses, columns["grad_accum_steps"]), 0)
        backward = backward + losses * _loss_gradients(model, framework, columns, head_gradient)
    last_norm = (2 + (columns["tp"] > 1) * framework.kept.gathered_inputs) * layer.between
    last_norm = last_norm * (1 + framework.kept.norm_bytes / (2 * framework.activation_bytes))
    least = np.min(np.where(held.kinds.rank > 0, kept_by_kind, np.inf), axis=0)
    at_loss, later = (
        _gathered(training, columns, held, at_loss=where) + _reducing(training, columns, held, least, at_loss=where)
        for where in (True, False)
    )
    # The built-in trainer's sums are scattered into tensors of their own (Megatron-Core's into parts of its buffers).
    shares = (columns["zero_stage"] == 1) & (columns["dp"] * columns["cp"] > 1) & framework.probed
    reduced = np.where(shares, held.optimizer_weights * FLOAT32_BYTES, 0.0)
    steps = np.where(columns["zero_stage"] >= 1, held.optimizer_weights, held.weights) * framework.step_bytes
    reduced = reduced if framework.host_optimizer else np.maximum(reduced, steps)

    factor, gradients = constants.activation_factor, states[MemoryPart.GRADIENTS]
    early = np.where(_fresh(framework, columns), 0.0, gradients)
    moments: list[Parts] = [
        _moment(kept * factor + last_norm * factor, logits * factor, at_loss, early, held.is_last),
        _moment(backward * factor, nothing, later, early, None),
        _moment(nothing, nothing, reduced, gradients, None),
    ]
    parts = states | fullest(moments)
    offset = WORKSPACES_SHARE if framework.reports is Reports.ALLOCATED else 1.0
    beside = constants.memory_offset_bytes * offset + _outside(training, columns)
    parts[MemoryPart.BUFFERS] = beside + _received(framework, columns, stage, layer)
    cached = _late(training, columns, constants) if framework.kept.late_buffers else nothing
    if framework.kept.flat_copies and framework.reports is not Reports.ALLOCATED:
        cached = cached + states[MemoryPart.WEIGHTS]
    # What the allocator could have back is given back before memory runs out, so it never fills it; nor do states that
    # are paged out.
    device = training.cluster.device
    paged = parts[MemoryPart.OPTIMIZER] * recipe.optimizer.paged
    parts[MemoryPart.OPTIMIZER] = parts[MemoryPart.OPTIMIZER] - paged
    room = np.maximum(USABLE_SHARE[device.kind] * device.memory_bytes - np.sum(list(parts.values()), axis=0), 0.0)
    parts[MemoryPart.OPTIMIZER] += np.minimum(paged, room)
    parts[MemoryPart.BUFFERS] += np.clip(cached, 0.0, np.maximum(room - paged, 0.0))
    return parts


def leaving_bytes(training: Training, columns: Columns) -> FloatColumn:
    """Of a rank of the first stage, per plan, what waits on the host while rows are generated."""
    framework, rollout = training.framework, training.recipe.rollout
    if rollout is None:
        return np.zeros(len(columns["pp"]))
    held = held_of(training, framework, columns, np.zeros_like(columns["pp"]))
    states = _states(training, framework, columns, held)
    weights, optimizer = states[MemoryPart.WEIGHTS], states[MemoryPart.OPTIMIZER]
    return weights * rollout.weights_leave + optimizer * rollout.optimizer_leaves


def offloaded_bytes(training: Training, columns: Columns) -> FloatColumn:
    """Host memory of a node per plan for an optimizer's state, and weights, that lie there, or wait there while rows
    are generated; 0 where none do, or on disks."""
    framework, pp = training.framework, columns["pp"]
    here = np.minimum(training.cluster.devices_per_node, columns["tp"] * pp * columns["cp"] * columns["dp"])
    leaving: FloatColumn = here * leaving_bytes(training, columns)
    if not framework.host_optimizer or framework.disk_optimizer:
        return leaving
    held = [held_of(training, framework, columns, stage) for stage in (np.zeros_like(pp), pp - 1)]
    each = framework.optimizer_bytes + framework.step_bytes
    frozen = np.zeros(len(pp))
    if training.recipe.offload is Offload.WEIGHTS:
        each += framework.weight_bytes
        frozen = np.maximum.reduce([one.frozen_shards for one in held])
    offloaded: FloatColumn = here * (np.maximum.reduce([one.optimizer_weights for one in held]) * each + frozen)
    return leaving + offloaded


def loaded_bytes(training: Training) -> float:
    """Host memory of a node while each of its ranks holds a whole checkpoint, before weights are sharded (transformers'
    from_pretrained without FSDP's cpu_ram_efficient_loading or DeepSpeed's zero.Init). No part of the peak."""
    framework, recipe = training.framework, training.recipe
    each = framework.weight_bytes if recipe.adapter is None else base_bytes(recipe, framework)[0]
    whole = training.model.parameters * each * training.cluster.devices_per_node
    return whole if framework.loads_whole else 0.0


def fullest(candidates: list[Parts]) -> Parts:
    """Per plan, the parts of the candidate whose sum is largest."""
    sums = np.stack([np.sum(list(parts.values()), axis=0) for parts in candidates])
    chosen = sums.argmax(axis=0)
    return {part: np.choose(chosen, [parts[part] for parts in candidates]) for part in candidates[0]}


def _moment(
    activations: FloatColumn,
    logits: FloatColumn,
    gathered: FloatColumn,
    gradients: FloatColumn,
    where: BoolColumn | None,
) -> Parts:
    """where: the plans that have this moment at all."""
    parts = {
        MemoryPart.ACTIVATIONS: activations,
        MemoryPart.LOGITS: logits,
        MemoryPart.GATHERED: gathered,
        MemoryPart.GRADIENTS: gradients,
    }
    return parts if where is None else {part: np.where(where, value, 0.0) for part, value in parts.items()}


def _fresh(framework: FrameworkProfile, columns: Columns) -> BoolColumn:
    """Where no gradients exist before the backward pass. The allocator keeps their room, so only tensors tell."""
    tells = framework.kept.fresh_gradients and framework.reports is Reports.ALLOCATED
    buckets = (columns["zero_stage"] < 2) & (columns["dp"] * columns["cp"] > 1)
    alone: BoolColumn = ~buckets & (columns["pp"] == 1) & (columns["grad_accum_steps"] == 1)
    return alone & tells


def _outside(training: Training, columns: Columns) -> FloatColumn:
    """Beside PyTorch's allocator; with a communicator for context and expert parallelism each, beyond those of tensor
    and data parallelism, and for the groups that shards are summed over. Sends between stages share one buffer
    (NVIDIA/nccl issue 1450)."""
    outside = outside_bytes(training)
    further = np.sum([columns["cp"] > 1, columns["ep"] > 1, zero_groups(columns) > 1], axis=0)
    counted: FloatColumn = outside + further * COMMUNICATOR_BYTES[training.cluster.device.kind] * (outside > 0)
    return counted


def in_flight(columns: Columns, stage: IntColumn) -> IntColumn:
    """The largest number of micro-batches whose activations a pipeline rank holds, counted per model chunk.

    Narayanan et al. 2021 for the first three, the last two as torch lays them out: there a micro-batch is held until
    its weights' gradients are made, so every rank holds what the first one does (Qi et al. 2023).
    """
    pp, vpp, count = columns["pp"], columns["vpp"], columns["grad_accum_steps"]
    behind = pp - 1 - stage
    by_schedule: Mapping[Schedule, IntColumn] = {
        Schedule.GPIPE: np.where(pp > 1, count * vpp, 1),
        Schedule.ONE_F_ONE_B: behind + 1,
        Schedule.INTERLEAVED: (vpp - 1) * pp + 2 * behind + 1,
        Schedule.ZERO_BUBBLE: vpp * pp,
        Schedule.ZBV: vpp * pp,
    }
    most: IntColumn = np.choose(columns["schedule"], [by_schedule[one] for one in SCHEDULES])
    fewest: IntColumn = np.minimum(most, count * vpp)
    return fewest


def kept_in_flight(
    columns: Columns, stage: IntColumn, of_rank: FloatColumn, of_first: FloatColumn, of_last: FloatColumn
) -> FloatColumn:
    """The most that a pipeline rank holds of what it keeps of micro-batches, in the unit of what is given: kept of one
    micro-batch by all of the rank's chunks, by its first, and by its last; those between are taken as alike.

    Interleaved schedules go through the chunks pp micro-batches at a time, forward in order and backward against it
    (Narayanan et al. 2021, 2.2). Two moments count: before the first backward pass, and before that of the first
    chunk, when it holds the most micro-batches. In a V (zbv) the last chunk of stage s then holds s of them or s + 1,
    the first chunk all others (counted of torch 2.13's ScheduleZBVZeroBubble)."""
    flight = in_flight(columns, stage)
    kept: FloatColumn = flight * of_rank
    some = np.flatnonzero(columns["vpp"] > 1)
    if len(some) == 0:
        return kept
    pp, vpp, count, schedule = (columns[name][some] for name in ("pp", "vpp", "grad_accum_steps", "schedule"))
    flight, stage = flight[some], stage[some]
    of_rank, of_first, of_last = of_rank[some], of_first[some], of_last[some]
    group, between = np.minimum(pp, count), (of_rank - of_first - of_last) / np.maximum(1, vpp - 2)

    def held(back: IntColumn) -> FloatColumn:
        """After so many backward passes, none of them the first chunk's."""
        rounds, more = np.divmod(flight + back, group * vpp)
        first = rounds * group + np.minimum(more, group)
        last = rounds * group + np.maximum(more - (vpp - 1) * group, 0) - np.minimum(back, group)
        sums: FloatColumn = first * of_first + last * of_last + (flight - first - last) * between
        return sums

    ahead = (np.minimum(stage + more, count) for more in (0, 1))
    folded = np.maximum(*(np.minimum(flight - last, count) * of_first + last * of_last for last in ahead))
    most = np.maximum(held(np.zeros_like(vpp)), held(np.minimum((vpp - 1) * group, count * vpp - flight)))
    kept[some] = np.where(schedule == SCHEDULES.index(Schedule.ZBV), folded, most)
    return kept


def _losses_at_once(framework: FrameworkProfile, columns: Columns) -> IntColumn:
    """The micro-batches between their loss and their backward pass. torch's pipeline holds what the last stage returned
    until then: of all micro-batches under GPipe, of two under zero bubble."""
    count = columns["grad_accum_steps"]
    at_once = np.where(columns["schedule"] == SCHEDULES.index(Schedule.GPIPE), count, 1)
    at_once = np.where(columns["schedule"] == SCHEDULES.index(Schedule.ZERO_BUBBLE), np.minimum(2, count), at_once)
    return np.where(framework.kept.torch_pipeline & (columns["pp"] > 1), at_once, 1)


def _loss(model: ModelSpec, framework: FrameworkProfile, columns: Columns, head_gradient: FloatColumn) -> FloatColumn:
    """Bytes at the loss of the last micro-batch in flight."""
    tokens, vocab = tokens_per_rank(model, columns), framework.padded_vocab(model, columns["tp"]) / columns["tp"]
    vocab = vocab * (1 + model.mtp_layers)  # each layer for a further token has logits of its own
    at_once = _losses_at_once(framework, columns)
    per_logit = np.where(columns["tp"] > 1, framework.parallel_logit_bytes, 0.0)
    per_logit = np.where(per_logit > 0, per_logit, framework.logit_bytes)
    if framework.kept.loss_chunks:
        chunk = np.minimum(tokens, np.maximum(FEWEST_CHUNK_TOKENS, np.ceil(tokens / framework.kept.loss_chunks)))
        # The head's gradient is summed in float32 while there are logits, and then converted.
        logits, head = chunk * vocab * per_logit, head_gradient
        wider = FLOAT32_BYTES / framework.activation_bytes
        return np.maximum(logits + (wider - 1) * head, wider * head * (wider > 1)) + at_once * _loss_gradients(
            model, framework, columns, head_gradient
        )
    # The logits, and beside them what cross entropy keeps in float32.
    width = framework.activation_bytes
    piped = framework.kept.torch_pipeline & (columns["pp"] > 1)
    returned = np.where(piped, width + (at_once - 1) * (width + FLOAT32_BYTES), 0.0)
    bytes_at_once: FloatColumn = tokens * vocab * (per_logit + returned)
    return bytes_at_once


def _loss_gradients(
    model: ModelSpec, framework: FrameworkProfile, columns: Columns, head_gradient: FloatColumn
) -> FloatColumn:
    """Of the head and of the hidden states, which a chunked loss makes: bytes of one micro-batch."""
    return tokens_per_rank(model, columns) * model.hidden * framework.activation_bytes + head_gradient


def _received(framework: FrameworkProfile, columns: Columns, stage: IntColumn, layer: LayerBytes) -> FloatColumn:
    """Hidden states and their gradients, as they come from the neighbours."""
    pp = columns["pp"]
    each = 2 * columns["vpp"] - (stage == 0) - (stage == pp - 1)
    ahead = columns["grad_accum_steps"] if framework.kept.torch_pipeline else np.ones_like(pp)
    return np.where(pp > 1, each * ahead * layer.between, 0.0)


def _late(training: Training, columns: Columns, constants: Constants) -> FloatColumn:
    """Gathered hidden states that PyTorch's allocator may not use again yet, the host being ahead of the device.

    Without a pipeline where a second micro-batch follows; in one, where tp stays inside of nodes: across them the
    device is not behind (docs/explanation/physics-memory.md)."""
    model, framework = training.model, training.framework
    gathered = (columns["tp"] > 1) & (columns["sequence_parallel"] > 0)
    inside = (columns["pp"] > 1) & (columns["tp"] <= training.cluster.domain)
    where = gathered & (inside | (columns["pp"] == 1) & (columns["grad_accum_steps"] > 1))
    each = tokens_per_rank(model, columns) * model.hidden * framework.activation_bytes
    return np.where(where, constants.late_buffers * each, 0.0)


def _head_gradient(training: Training, framework: FrameworkProfile, columns: Columns) -> FloatColumn:
    """Bytes of the head's, from the loss to the backward pass. None where it is frozen, or the loss adds it to the
    optimizer's own sum: not with FSDP2, also of ZeRO 0 on accelerators, nor in a pipeline."""
    if not training.recipe.trains_head:
        return np.zeros(len(columns["pp"]))
    model = training.model
    own_sum = ((columns["zero_stage"] == 1) | (columns["dp"] * columns["cp"] == 1)) & (columns["pp"] == 1)
    rows = framework.padded_vocab(model, columns["tp"]) / columns["tp"]
    return np.where(own_sum, 0.0, rows * model.hidden * framework.activation_bytes)


def _states(training: Training, framework: FrameworkProfile, columns: Columns, held: Held) -> Parts:
    """Weights, gradients and optimizer state; weights of other models beside. In a pipeline a chunk's gradients stay
    whole until its last micro-batch (docs/explanation/memory.md), and other chunks' beside them unless its backward
    passes come in a row. Shards for an optimizer on the host go there at once (DeepSpeed edaa7221,
    zero/stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu; stage3.py, grad_partitions_flat_buffer)."""
    zero, recipe = columns["zero_stage"], training.recipe
    whole, shards = held.weights, held.optimizer_weights
    master_only = framework.kept.master_is_shard
    weights = np.where(zero == 3, 0.0 if master_only else shards, whole) * framework.weight_bytes
    weights = weights + np.where(zero == 3, held.frozen_shards, held.frozen)
    # torch's FSDP gathers from weights that stay beside: ZeRO 2 from shards, replicate() (the built-in trainer's ZeRO 0
    # on accelerators) from whole ones.
    gathers = (framework.kept.fsdp2 or framework.gather_bytes < framework.weight_bytes) & (
        columns["dp"] * columns["cp"] > 1
    )
    replicates = framework.probed and training.cluster.device.kind is not DeviceKind.CPU
    own = 0.0 if master_only else framework.weight_bytes
    both = held.gathered_ends + held.gathered_layers
    weights = np.where(gathers & (zero == 2), both + shards * own + held.frozen_shards, weights)
    weights = np.where(gathers & (zero == 0) & replicates, both + whole * own + held.frozen, weights)
    if recipe.offload is Offload.WEIGHTS:
        weights = np.zeros_like(weights)
    in_a_row = columns["schedule"] == SCHEDULES.index(Schedule.INTERLEAVED)
    in_a_row = in_a_row & (columns["grad_accum_steps"] <= columns["pp"])
    at_once = np.where(columns["pp"] > 1, whole / np.where(in_a_row, columns["vpp"], 1), 0.0)
    gradients = np.where(zero >= 2, at_once + (0.0 if framework.host_optimizer else shards), whole)
    states = np.where(zero >= 1, shards, whole) * framework.optimizer_bytes
    states = states + np.where(zero >= 1, held.end_shards, held.ends) * framework.more_end_bytes
    # Other models are cut as the trained one by tp and pp, and sharded where ZeRO 3 shards.
    bits: float = sum((one.parameters or training.model.parameters) * one.bits for one in recipe.beside)
    ranks = sharding_ranks(columns)
    return {
        MemoryPart.WEIGHTS: weights + bits / 8 / (columns["tp"] * columns["pp"] * np.where(zero == 3, ranks, 1)),
        MemoryPart.GRADIENTS: gradients * framework.gradient_bytes,
        MemoryPart.OPTIMIZER: states * (not framework.host_optimizer),
    }


def _gathered(training: Training, columns: Columns, held: Held, *, at_loss: bool) -> FloatColumn:
    """ZeRO 3, and weights that come from the host: whole weights of the ends and of two layers, or all it may leave; in
    a pipeline of all layers, which torch does not shard again after a backward pass. FSDP2 shards a chunk's layers
    again before the loss; without a pipeline the last one's weights are still there. And a product's weights as they
    are computed with, where they lie in fewer bits."""
    framework, recipe = training.framework, training.recipe
    everything, units = held.gathered_ends + held.gathered_layers, 2
    piped = everything
    if framework.kept.fsdp2 and at_loss:
        piped, units = everything - held.layers / columns["vpp"] * held.gathered_unit, 1
    alone = held.gathered_ends + np.minimum(units, held.layers) * held.gathered_unit
    alone = np.maximum(alone, np.minimum(framework.live_weights * framework.gather_bytes, everything))
    where = (columns["zero_stage"] == 3) & (columns["dp"] * columns["cp"] > 1)
    where = where | (recipe.offload is Offload.WEIGHTS)
    widest = max((one.product.parameters for one in adapted(training.model, recipe)), default=0)
    wider = widest / columns["tp"] * framework.activation_bytes if 0 < recipe.base_bits < 16 else 0.0
    return wider + np.where(where, np.where(columns["pp"] > 1, piped, alone), 0.0)


def _reducing(
    training: Training, columns: Columns, held: Held, layer_kept: FloatColumn, *, at_loss: bool
) -> FloatColumn:
    """The ends' gradients as they are reduced, from ZeRO 2 on without a pipeline. FSDP2 holds what it reduces until the
    next reduction: at the loss the ends' of the micro-batch before, then a layer's, whose activations are gone
    (layer_kept), and the head's wait, unreduced, for the embedding's. With a tied head autograd adds them up so of any
    code. Buckets of gradients are there before the loss's backward pass, in which logits take most (DeepSpeed edaa7221,
    zero/stage_1_and_2.py, setup_buckets; stage3.py)."""
    framework, zero, model = training.framework, columns["zero_stage"], training.model
    ends = np.where((zero == 2) | framework.kept.fsdp2, held.ends * framework.reduce_bytes, 0.0)
    where = (zero >= 2) & (columns["pp"] == 1)
    head = framework.padded_vocab(model, columns["tp"]) / columns["tp"] * model.hidden * framework.gather_bytes
    head = head * training.recipe.trains_head
    if framework.kept.fsdp2:
        ends = np.where(columns["grad_accum_steps"] > 1, ends, 0.0)
        if not at_loss:
            layer = np.where(held.layers > 1, held.unit * framework.reduce_bytes - layer_kept, 0.0)
            ends = np.maximum(ends, layer) + head
    elif model.tied_head and not at_loss:
        ends = np.maximum(ends, head)
    bucket = framework.bucket_weights * framework.kept.copied_buckets * framework.gradient_bytes
    buckets = bucket * (1 + (zero < 3) * framework.overlapped_gradients)
    reducing = np.where(where, ends, 0.0) + np.where(zero > 0, buckets, 0.0)
    return np.where(columns["dp"] * columns["cp"] > 1, reducing, 0.0)
