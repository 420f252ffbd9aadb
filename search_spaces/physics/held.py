"""The contents of one rank: whole layers, and weights, those that are trained and those that are not, after tp, pp, ep
and ZeRO's division."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshtune.search_spaces.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    expert_replicas,
    expert_tp,
    sharding_ranks,
    zero_groups,
)
from meshtune.search_spaces.model import ModelSpec, last_kind, layer_kinds
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile
from meshtune.search_spaces.physics.recipes import base_bytes, trained_layers
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.stages import KindsHeld, computes_loss, kinds_held, predicts_further


@dataclass(frozen=True, slots=True)
class Held:
    """The contents of one rank: whole layers, and trained weights (tp, pp and ep applied). is_last: it computes the
    loss. ends: of the embedding, the last norm and the head. unit: of its largest layer. *_weights: after ZeRO's
    division. kinds: the layers of each kind. frozen, frozen_shards: bytes of the weights that are not trained, whole
    and after ZeRO 3's division. gathered_*: bytes of weights of either kind, as ZeRO 3 gathers them."""

    layers: FloatColumn
    kinds: KindsHeld
    weights: FloatColumn
    optimizer_weights: FloatColumn
    end_shards: FloatColumn
    unit: FloatColumn
    ends: FloatColumn
    is_last: BoolColumn
    frozen: FloatColumn
    frozen_shards: FloatColumn
    gathered_unit: FloatColumn
    gathered_ends: FloatColumn
    gathered_layers: FloatColumn


def held_of(training: Training, framework: FrameworkProfile, columns: Columns, stage: IntColumn) -> Held:
    model, recipe = training.model, training.recipe
    # Layers that predict further tokens count as layers of the chunk that has them, their projections as its ends.
    further = np.array([[model.mtp_layers * (kind == last_kind(model))] for _, kind in layer_kinds(model)])
    further = further * predicts_further(model, columns, stage)
    kinds = kinds_held(model, columns, stage, head_in_layers(model, framework, columns["tp"]))
    kinds = kinds._replace(rank=kinds.rank + further, last_chunk=kinds.last_chunk + further)
    every = layer_weights(model, columns)
    dense, experts = trained_layers(model, recipe, columns, stage, every)
    widths = base_bytes(recipe, framework)
    # Mixed precision gathers what is frozen in its narrower format, too.
    gathered_widths = min(widths[0], framework.gather_bytes), min(widths[1], framework.gather_bytes)
    frozen, gathered = (_frozen_bytes(training, every, (dense, experts), each) for each in (widths, gathered_widths))
    trained, fixed = end_weights_of(training, framework, columns, stage)
    tower = model.tower_parameters * (stage == 0)
    trained, fixed = trained + tower * recipe.trained_tower, fixed + tower * (not recipe.trained_tower)

    def of_rank(parts: tuple[FloatColumn, FloatColumn], ends: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """The sums over the rank's layers, whole and after ZeRO's division."""
        of_dense, of_experts = (np.sum(kinds.rank * part, axis=0) for part in parts)
        return ends + of_dense + of_experts, sharded_weights(framework, columns, ends + of_dense, of_experts)

    weights, shards = of_rank((dense, experts), trained)
    frozen_whole, frozen_shards = of_rank(frozen, fixed * widths[1])
    unit = (dense + experts) * framework.gather_bytes + sum(gathered)
    return Held(
        layers=np.sum(kinds.rank, axis=0),
        kinds=kinds,
        weights=weights,
        optimizer_weights=shards,
        end_shards=trained / sharding_ranks(columns),
        unit=np.max(np.where(kinds.rank > 0, dense + experts, 0.0), axis=0),
        ends=trained,
        is_last=computes_loss(columns, stage),
        frozen=frozen_whole,
        frozen_shards=frozen_shards,
        gathered_unit=np.max(np.where(kinds.rank > 0, unit, 0.0), axis=0),
        gathered_ends=trained * framework.gather_bytes + fixed * gathered_widths[1],
        gathered_layers=np.sum(kinds.rank * unit, axis=0),
    )


def _frozen_bytes(
    training: Training, every: tuple[FloatColumn, FloatColumn], trained: Any, widths: tuple[float, float]
) -> tuple[FloatColumn, FloatColumn]:
    """Bytes of the frozen weights of one layer of each kind on one rank, likewise. every, trained: their weights.
    widths: of products' weights, and of others."""
    model, recipe, (products, plain) = training.model, training.recipe, widths
    if recipe.adapter is None:
        return (every[0] - trained[0]) * plain, (every[1] - trained[1]) * products
    beside = [[kind.layer_norm_parameters + kind.hidden * kind.experts] for _, kind in layer_kinds(model)]
    of_experts = products if recipe.quantized_experts else plain
    return (every[0] - beside) * products + np.array(beside) * plain, every[1] * of_experts


def end_weights_of(
    training: Training, framework: FrameworkProfile, columns: Mapping[str, Any], stage: Any
) -> tuple[FloatColumn, FloatColumn]:
    """Weights of embedding, last norm and head that are trained, and those that are not. With an adapter all are there
    frozen: PEFT trains copies of them (utils/other.py, ModulesToSaveWrapper), the built-in trainer themselves."""
    model, recipe = training.model, training.recipe
    ends = end_weights(model, framework, columns, stage)
    if recipe.adapter is not None:
        return ends * recipe.trained_ends, ends * (not (recipe.trained_ends and framework.probed))
    vocab = framework.padded_vocab(model, columns["tp"]) * model.hidden / columns["tp"]
    positions = (model.embedding_parameters - model.vocab * model.hidden) / columns["tp"]
    is_last = computes_loss(columns, stage)
    head = np.where(model.tied_head & (stage == 0), 0.0, vocab) + model.norm_parameters
    embedding = (stage == 0) & (recipe.frozen_embedding & (recipe.frozen_head or not model.tied_head))
    frozen: FloatColumn = embedding * (vocab + positions) + is_last * recipe.frozen_head * head
    return ends - frozen, frozen


def sharded_weights(
    framework: FrameworkProfile, columns: Mapping[str, Any], dense: FloatColumn, experts: FloatColumn
) -> FloatColumn:
    """Of a rank's weights those whose states are its own where ZeRO shards them. dense: those that all of dp x cp hold
    alike, of which a code that does not shard over experts keeps a copy on each of ep."""
    copies = 1 if framework.shards_over_experts else columns["ep"]
    shared = dense / (sharding_ranks(columns) / copies)
    own: FloatColumn = shared + experts / (expert_replicas(columns) / zero_groups(columns))
    return own


def end_weights(model: ModelSpec, framework: FrameworkProfile, columns: Mapping[str, Any], stage: Any) -> FloatColumn:
    """Weights of one rank outside of layers: embedding, last norm, head, and what joins layers for further tokens."""
    tp = columns["tp"]
    is_first, is_last = stage == 0, computes_loss(columns, stage)
    shared = model.tied_head & is_first & is_last
    vocab = framework.padded_vocab(model, tp) * model.hidden / tp
    positions = (model.embedding_parameters - model.vocab * model.hidden) / tp
    further = model.mtp_layers * (2 * model.hidden**2 / tp + 3 * model.norm_parameters)
    # The first of several stages' embedding has a copy where such layers are (Megatron-LM d98e8a64, core/transformer/
    # multi_token_prediction.py), unless it is the tied head.
    here = predicts_further(model, columns, stage) if model.mtp_layers else np.zeros_like(is_last)
    copied = np.where(is_first | (is_last & model.tied_head), 0.0, vocab)
    head = np.where(shared, 0, vocab) + model.norm_parameters
    ends: FloatColumn = np.where(is_first, vocab + positions, 0.0) + np.where(is_last, head, 0.0)
    return ends + np.where(here, further + copied, 0.0)


def head_in_layers(model: ModelSpec, framework: FrameworkProfile, tp: IntColumn | FloatColumn) -> FloatColumn | None:
    """The layers that the head counts for where a code shares layers out with it, by the weights that a token meets
    (nanotron's block costs); None elsewhere."""
    if not framework.balances_head:
        return None
    met = model.attention_parameters + max(1, model.top_k) * model.feed_forward_parameters
    layers: FloatColumn = framework.padded_vocab(model, tp) * model.hidden / met
    return layers


def layer_weights(model: ModelSpec, columns: Mapping[str, Any]) -> tuple[FloatColumn, FloatColumn]:
    """Weights of one layer of each kind on one rank, kinds x plans: those that all data-parallel ranks share, and those
    of its experts."""
    tp, experts_cut, dense, experts = columns["tp"], columns["ep"] * expert_tp(columns), [], []
    for _, kind in layer_kinds(model):
        whole = kind.whole_attention_parameters
        own = (kind.attention_parameters - whole + kind.shared_parameters) / tp + whole
        own = own + kind.layer_norm_parameters + kind.hidden * kind.experts
        blocks = max(1, kind.experts) * kind.feed_forward_parameters / (experts_cut if kind.experts else tp)
        dense.append(own if kind.experts else own + blocks)
        experts.append(blocks if kind.experts else np.zeros(len(tp)))
    return np.stack(dense), np.stack(experts)
