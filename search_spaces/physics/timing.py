"""Seconds of an optimizer step under a plan, by part, for whole columns of plans at once.

A micro-batch crosses a pipeline stage in the time of its layers (`layer_time`); stages make a pipeline; gradients are
reduced (`replicas`) and the optimizer runs once per step. The step is the slowest stage's. Not modelled: data loading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import SCHEDULES, Columns, FloatColumn
from meshtune.search_spaces.model import layer_kinds
from meshtune.search_spaces.physics.constants import Constants
from meshtune.search_spaces.physics.held import end_weights, end_weights_of, head_in_layers, sharded_weights
from meshtune.search_spaces.physics.layer_time import LayerTime, Rank, summed
from meshtune.search_spaces.physics.memory import leaving_bytes
from meshtune.search_spaces.physics.network import Network
from meshtune.search_spaces.physics.recipes import base_bytes, in_rows
from meshtune.search_spaces.physics.replicas import Passes, replicas_s
from meshtune.search_spaces.physics.rollout import engine_of
from meshtune.search_spaces.physics.training import Training, missing
from meshtune.search_spaces.plan import Schedule
from meshtune.search_spaces.recipe import Offload
from meshtune.search_spaces.stages import computes_loss, kinds_held, predicts_further, stages_apart

# Orders of magnitude of a host: PCIe 4.0 with 16 lanes has 31.5 GB/s, two sockets of eight DDR4-3200 channels 410 GB/s.
HOST_LINK_BYTES_PER_S = 25e9
HOST_MEMORY_BYTES_PER_S = 3e11
# Parameters of a layer (two norms; query, key and value as one; output; the block's two) and of embedding, norm, head.
PARAMETERS_PER_LAYER, PARAMETERS_OF_ENDS = 6, 3


class TimePart(StrEnum):
    """Parts of a step's time; work beside computation that does not lengthen the step is in none.

    COMPUTE: forward and backward passes. RECOMPUTE: activations computed again. TP, CP, EP: collectives in the layers.
    SEND_RECEIVE: between stages. BUBBLE: stages idle while the pipeline fills and drains. DP: gradients' reduction,
    ZeRO's gathers and the wait for the slowest replica. OPTIMIZER: the update. Of reinforcement learning also
    GENERATION; LOG_PROBS, forward passes of all models; REFIT, the engine's new weights, and what left the device.
    """

    COMPUTE = "compute"
    RECOMPUTE = "recompute"
    TP = "tp"
    CP = "cp"
    EP = "ep"
    SEND_RECEIVE = "send_receive"
    BUBBLE = "bubble"
    DP = "dp"
    OPTIMIZER = "optimizer"
    GENERATION = "generation"
    LOG_PROBS = "log_probs"
    REFIT = "refit"


@dataclass(frozen=True, slots=True)
class _Stage:
    """The pipeline's slowest rank and one micro-batch: its layers of each kind (kinds x plans), its weights that all
    replicas hold alike and experts', all and those that are trained, its layers' seconds by kind of work, and its
    seconds in the head and for further tokens; and the seconds of all ranks together."""

    held: FloatColumn
    weights: tuple[FloatColumn, FloatColumn]
    trained: tuple[FloatColumn, FloatColumn]
    work: LayerTime
    head_s: FloatColumn
    all_s: FloatColumn

    @property
    def seconds(self) -> FloatColumn:
        return self.work.total + self.head_s


def time_parts(training: Training, columns: Columns, constants: Constants) -> dict[TimePart, FloatColumn]:
    """Seconds per optimizer step by part, on the path that decides the step: its slowest pipeline stage.
    In reinforcement learning of all updates and what is beside them.

    Raises InvalidValue where the cluster's description leaves out what a time depends on (`training.missing`).
    """
    if problems := missing(training):
        raise InvalidValue(problems)
    recipe, tokens = training.recipe, training.recipe.mean_row(training.model.seq_len)
    if tokens != training.model.seq_len:
        training = replace(training, model=replace(training.model, seq_len=tokens))
    generated = columns["micro_batch_size"] * columns["grad_accum_steps"] * columns["dp"] * recipe.rows_per_sample
    columns = in_rows(recipe, columns, tokens)
    floats = {name: column.astype(np.float64) for name, column in columns.items()}
    floats["micro_batch_size"] = generated / floats["dp"] / floats["grad_accum_steps"]  # in the mean
    rank = Rank(training, floats, constants, Network(training.cluster, constants))
    stage, micro = _slowest_stage(rank), floats["grad_accum_steps"]
    work, computed, sizes = stage.work, stage.work.compute + stage.head_s, rank.training.model.parameters
    # Passes of other models, each as long as the trained one's by its weights; of rollouts among log-probabilities.
    others = sum(one.parameters or sizes for one in recipe.beside if one.runs) / sizes
    beside = computed / (1 + rank.passes[1]) * others * (recipe.rollout is None)
    update = {
        TimePart.COMPUTE: micro * (computed + beside),
        TimePart.RECOMPUTE: micro * work.recompute,
        TimePart.TP: micro * work.tp,
        TimePart.CP: micro * work.cp,
        TimePart.EP: micro * work.ep,
        TimePart.SEND_RECEIVE: _send_receive_s(rank, stage),
        TimePart.BUBBLE: _bubble_s(rank, stage),
        TimePart.DP: _dp_s(rank, stage),
        TimePart.OPTIMIZER: _optimizer_s(rank, stage),
    }
    if (rollout := recipe.rollout) is None:
        return update
    # A forward pass is a third of an update without recomputation and optimizer.
    parts = {part: rollout.updates * seconds for part, seconds in update.items()}
    passes = [seconds for part, seconds in parts.items() if part not in (TimePart.RECOMPUTE, TimePart.OPTIMIZER)]
    parts[TimePart.LOG_PROBS] = (1 + others) / 3 * np.sum(passes, axis=0)
    engine = engine_of(training, rollout)
    generation = engine.generation_s(rank, rollout.updates * generated.astype(np.float64))
    if rollout.behind and rollout.devices:  # beside the training: only what it takes longer is shown
        generation = np.maximum(0.0, generation - np.sum(list(parts.values()), axis=0))
    # Every device gathers the trained weights and writes its engine's, or those that it has shards of, to generate
    # itself; what leaves it meanwhile goes and comes back.
    devices = floats["tp"] * floats["pp"] * floats["cp"] * floats["dp"] + rollout.devices
    written = 2 * engine.weights / rank.rates.bytes_per_s
    refit = rank.network.gather_s(training.model.parameters * rollout.weight_bits / 8, devices, 1.0) + written
    refit = np.where((rollout.share > 0) | (floats["zero_stage"] == 3), refit, 0.0)
    moved = leaving_bytes(training, columns) / HOST_LINK_BYTES_PER_S
    return parts | {TimePart.GENERATION: generation, TimePart.REFIT: refit + 2 * moved}


def _slowest_stage(rank: Rank) -> _Stage:
    """The head comes on top of the last chunk's layers, or counts as layers (`head_in_layers`)."""
    model, c, framework = rank.training.model, rank.columns, rank.training.framework
    head_s, further_s, layers = rank.head_s(), rank.further_s(), rank.layers()
    seconds = np.stack([layer.total for layer in layers])
    of_head = head_in_layers(model, framework, c["tp"])
    held, heads, ends = [], [], []
    for stage in stages_apart(model, c):
        own = end_weights_of(rank.training, framework, c, stage)[0]
        ends.append(np.stack([end_weights(model, framework, c, stage), own]))
        held.append(kinds_held(model, c, stage, of_head).rank)
        further = np.where(predicts_further(model, c, stage), further_s, 0.0)
        heads.append(np.where(computes_loss(c, stage), head_s, 0.0) + further)
    slowest = np.argmax([np.sum(own * seconds, axis=0) + head for own, head in zip(held, heads, strict=True)], axis=0)
    chosen = np.choose(slowest, held)
    all_s = (
        head_s
        + further_s
        + sum(count * layer.total for (count, _), layer in zip(layer_kinds(model), layers, strict=True))
    )
    every = np.sum(chosen * np.stack([rank.weights(trained=some) for some in (False, True)]), axis=2)
    every[:, 0] += np.choose(slowest, ends)
    weights, trained = ((dense, experts) for dense, experts in every)
    return _Stage(chosen, weights, trained, summed(layers, chosen), np.choose(slowest, heads), all_s)


def _send_receive_s(rank: Rank, stage: _Stage) -> FloatColumn:
    """Per micro-batch and chunk an activation forward and a gradient back, cut over tp (Narayanan et al. 2021, 4.1)."""
    c, model = rank.columns, rank.training.model
    size = rank.tokens * model.hidden * rank.training.framework.transfer_bytes / c["tp"]
    one = rank.network.send_s(size, c["pp"], c["tp"] * c["cp"] * c["dp"]) + rank.constants.send_overhead_s
    times = 2 * (c["grad_accum_steps"] * c["vpp"] + c["pp"] - 1)
    beside = rank.training.framework.overlaps_sends & (c["vpp"] > 1)
    shown = np.where(beside, rank.exposed_s(one, stage.seconds / (2 * c["vpp"])), one)
    return np.where(c["pp"] > 1, times * shown, 0.0)


def _bubble_s(rank: Rank, stage: _Stage) -> FloatColumn:
    """Filling and draining: the other stages' time once, cut by the chunks of an interleaved schedule (Narayanan et al.
    2021, 2.2). Split backward passes fill it with the weights' gradients W: of F + B + W, F + B - W is left under ZB-H1
    and F + B - 2 W under ZB-V (Qi et al. 2023, table 2, with their B and W counted apart). The last micro-batch's W
    fills nothing, so with fewer micro-batches than stages F + B is left of some."""
    c = rank.columns
    filled = np.minimum(1.0, (c["grad_accum_steps"] - 1) / np.maximum(1, c["pp"] - 1))
    fill = (stage.all_s - stage.seconds) / c["vpp"]
    # A last stage may hold the loss alone.
    share = stage.work.weights / np.maximum(stage.work.total, np.finfo(np.float64).tiny)
    moved = np.select(
        [c["schedule"] == SCHEDULES.index(Schedule.ZERO_BUBBLE), c["schedule"] == SCHEDULES.index(Schedule.ZBV)],
        [(1 + filled) * share, (1 + 2 * filled) * share],
    )
    left: FloatColumn = fill * np.maximum(0.0, 1 - moved)
    return left


def _dp_s(rank: Rank, stage: _Stage) -> FloatColumn:
    """The replicas' collectives, the wait for the slowest of them, the slices that a code cuts weights into, and the
    weights that lie on the host."""
    c, framework = rank.columns, rank.training.framework
    layers, repeated = np.sum(stage.held, axis=0), stage.work.recompute
    # Units of weights are ready, and needed, by the clock: collectives in the layers are beside them, too.
    backward = rank.passes[1]
    forward = (stage.seconds - repeated) / (1 + backward)
    passes = Passes(layers, stage.weights, stage.trained, forward, backward * forward + repeated)
    shown = replicas_s(rank, passes)
    if rank.training.recipe.offload is Offload.WEIGHTS:
        # The rank's share comes from the host's memory for both passes of each micro-batch, beside them.
        own = sharded_weights(framework, c, *stage.weights) * base_bytes(rank.training.recipe, framework)[0]
        shown = shown + c["grad_accum_steps"] * rank.exposed_s(2 * own / HOST_LINK_BYTES_PER_S, stage.seconds)
    # The wait for the slowest replica: of n normal times the largest lies sqrt(2 ln n) standard deviations above their
    # mean (Cramer 1946, 28.6).
    waiting: FloatColumn = np.sqrt(2 * np.log(c["dp"] * c["cp"])) * rank.constants.straggling
    waiting = waiting * (c["grad_accum_steps"] * stage.seconds)
    slices = (PARAMETERS_PER_LAYER * layers + PARAMETERS_OF_ENDS) * c["dp"] * c["cp"]
    cut = slices * framework.slice_s * rank.constants.launch_factor
    return shown + waiting + np.where((c["zero_stage"] == 1) & (c["dp"] * c["cp"] > 1), cut, 0.0)


def _optimizer_s(rank: Rank, stage: _Stage) -> FloatColumn:
    """Reads and writes of states, weights and gradients of the rank's share, and what every step pays once."""
    c, framework, (dense, experts) = rank.columns, rank.training.framework, stage.trained
    own = np.where(c["zero_stage"] >= 1, sharded_weights(framework, c, dense, experts), dense + experts)
    per_weight = 2 * (framework.optimizer_bytes + framework.step_bytes)
    per_weight += 2 * framework.weight_bytes + framework.gradient_bytes
    rates = rank.rates
    known = rates.measured.step_overhead_s if framework.probed else None
    overhead_s = rates.reached("step_overhead_s", known, 1.0)
    if framework.host_optimizer:
        # Gradients go down, weights come up, and the ranks of a node share its memory.
        moved = own * (framework.gradient_bytes + framework.weight_bytes) / HOST_LINK_BYTES_PER_S
        ranks = np.minimum(rank.training.cluster.devices_per_node, c["tp"] * c["pp"] * c["cp"] * c["dp"])
        return moved + own * per_weight * ranks / HOST_MEMORY_BYTES_PER_S + overhead_s
    moving = rates.reached("memory_efficiency", rates.measured.updated_per_s, rates.bandwidth / per_weight)
    return own / moving + overhead_s
