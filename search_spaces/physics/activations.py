"""Activations: bytes that one layer's forward pass keeps for its backward pass, plan by plan.

Counted tensor by tensor as in Korthikanti et al. 2022, section 4.1. A value lies in one of three places: inside of the
blocks (heads and feed-forward, cut by tp), between them (cut by tp under sequence parallelism, else whole on every
rank), or gathered at the entrance of a block (always whole). cp cuts the sequence everywhere.

Layers of several kinds (`model.layer_kinds`) are counted apart. A window keeps what full attention keeps, and no fewer
scores where these are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshtune.search_spaces.columns import (
    CONTEXTS,
    RECOMPUTES,
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    expert_tp,
)
from meshtune.search_spaces.layer_shapes import CutSide, Product
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, layer_kinds
from meshtune.search_spaces.physics.constants import DEFAULTS, Constants
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile
from meshtune.search_spaces.physics.recipes import adapted, base_bytes, casts_inputs
from meshtune.search_spaces.plan import ContextParallel, Recompute, Selective
from meshtune.search_spaces.recipe import LINEAR, PLAIN, Recipe, Target
from meshtune.search_spaces.routing import UNEVEN, Routing, busiest_of, rank_loads

FLOAT32_BYTES = 4
MASK_BYTES = 1
INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of one layer and micro-batch."""

    # Until its backward pass, averaged over the layers of a recompute interval.
    kept: FloatColumn
    # Computed again by a recomputed layer.
    again: FloatColumn
    # Held by the backward pass of a layer beside the activations.
    gradients: FloatColumn
    # Results of the layer's matrix products.
    products: FloatColumn
    # One hidden state between the layers, as it lies on a rank.
    between: FloatColumn


class _Setting(NamedTuple):
    """What bytes are counted for. split: over how many ranks of tp a value between the blocks is cut. load: of the
    fullest rank of ep. inputs: the copies of products' inputs."""

    model: ModelSpec
    framework: FrameworkProfile
    columns: Columns
    tokens: FloatColumn
    tp: FloatColumn
    split: FloatColumn
    load: FloatColumn
    inputs: KeptInputs


def tokens_per_rank(model: ModelSpec, columns: Mapping[str, Any]) -> FloatColumn:
    """Tokens of one micro-batch whose activations lie on a rank, tp left out."""
    tokens: FloatColumn = columns["micro_batch_size"] * model.seq_len / columns["cp"]
    return tokens


def layer_bytes(
    model: ModelSpec,
    framework: FrameworkProfile,
    columns: Columns,
    constants: Constants = DEFAULTS,
    recipe: Recipe = PLAIN,
) -> list[LayerBytes]:
    """Of a layer of each kind, in the order of `layer_kinds`."""
    return [_bytes_of_kind(kind, framework, columns, constants, recipe) for _, kind in layer_kinds(model)]


def _bytes_of_kind(
    model: ModelSpec, framework: FrameworkProfile, columns: Columns, constants: Constants, recipe: Recipe
) -> LayerBytes:
    tokens = tokens_per_rank(model, columns)
    tp = columns["tp"].astype(np.float64)
    split = np.where((columns["sequence_parallel"] > 0) & (tp > 1), tp, 1.0)
    load = expert_load(model, framework, columns, constants)
    inputs = kept_inputs(model, framework, recipe, columns)
    between = tokens * model.hidden * inputs.hidden_bytes / split
    setting = _Setting(model, framework, columns, tokens, tp, split, load, inputs)
    whole = _whole(setting)
    selective = _selective(setting, whole)
    recompute = columns["recompute"]
    light = np.choose(
        (recompute == RECOMPUTES.index(Recompute.SELECTIVE)) + 2 * (recompute == RECOMPUTES.index(Recompute.FULL)),
        [whole, np.minimum(selective, whole), np.minimum(between, whole) * (not recipe.offload_activations)],
    )
    kept = whole + (light - whole) / columns["recompute_interval"]
    asked = max(1, model.top_k) * load * model.ffn
    inner = (asked + model.shared_ffn) * (model.activation.matrices - 1)
    gradients = tokens * framework.activation_bytes * (inner / tp + 2 * model.hidden)
    # With keys and values gathered over cp, what attention's backward pass holds more than the feed-forward block's
    # activations, which are gone then: all of them, their gradients, a kernel's gradients, and one hidden state.
    gathers = (columns["context"] == CONTEXTS.index(ContextParallel.ALL_GATHER)) & (columns["cp"] > 1)
    every = 3 * columns["cp"] * (model.kv_width + model.value_width) / tp + model.hidden
    gone = _feed_forward(setting, np.ones_like(tp) if framework.kept.gathered_inputs else split)
    gathered = np.where(gathers, tokens * (every * framework.activation_bytes - gone), 0.0)
    gradients = np.maximum(gradients, gathered) + tokens * FLOAT32_BYTES * inputs.widest_cast / tp
    attention = (model.query_width + model.kv_width + model.value_width) / tp
    products = (
        tokens * framework.activation_bytes * (inner / tp + attention + _latent_width(model) / split) + 2 * between
    )
    return LayerBytes(kept, whole - light, gradients, products, between)


def _whole(setting: _Setting) -> FloatColumn:
    """Without recomputation: 34 s b h of Korthikanti et al. for a GPT with dropout, and 5 a s^2 b unfused."""
    model, framework, _, tokens, tp, split, load, inputs = setting
    kept, width = framework.kept, framework.activation_bytes
    hidden = model.hidden
    entrance = np.ones_like(tp) if kept.gathered_inputs else split
    # The two norms' inputs; what they return, which is what the blocks' first products read.
    apart = _norm_bytes(model, framework)
    # The float32 input alone where nothing asks for the weight's gradient.
    norm = apart + inputs.hidden_bytes if inputs.norms_trained or apart == 0 else min(apart, FLOAT32_BYTES)
    between = (2 * hidden * norm + kept.dropout * 2 * hidden * MASK_BYTES) / split
    between = between + hidden * inputs.attention * (inputs.width + inputs.masks) / entrance
    # Latent attention's narrow vectors, which each rank has of its tokens between the blocks: what their norms read and
    # return.
    between = between + 2 * _latent_width(model) * width / split
    # Query and what attention returns; key and value; a row of the softmax's logarithms per head.
    # Values of latent attention are a view of what made them with the keys' part without a position, which stays whole
    # while keys are copied (Megatron-LM d98e8a64, core/transformer/multi_latent_attention.py).
    whole = model.heads * model.latent_attention.qk_nope_head_dim if model.latent_attention else 0
    read, answer = model.kv_width + model.value_width + whole, model.answer_width
    attention = (
        (model.query_width + (1 + kept.attention_copies) * answer) * width
        + inputs.answer * answer * (inputs.width + inputs.masks)
        + (1 + kept.key_value_copies) * read * width
        + (model.heads * FLOAT32_BYTES if framework.fused_attention else 0)
    ) / tp
    if not framework.fused_attention:
        attention = attention + _scores(model, framework) / tp
    narrow = inputs.width * (inputs.narrow + inputs.narrow_of_experts * model.top_k * load)
    values = between + attention + _feed_forward(setting, entrance) + narrow
    return tokens * values + inputs.cast_weights * width / tp


class KeptInputs(NamedTuple):
    """Inputs of products that gradients of weights are made of: how many copies of those of attention, of its output
    (beside the one that the kernel keeps), of the feed-forward block and of its last product; whether experts', and
    what norms multiply with their weights, of so many bytes, are kept. width, masks: bytes per value of those copies,
    and of dropout. narrow: values per token between the two products of adapters, and per copy of a token for an
    expert. widest_cast: values per token of the widest input that is cast to float32 on its way to an adapter, cut by
    tp. cast_weights: of a layer, whose casts are kept."""

    attention: IntColumn
    answer: IntColumn
    block: IntColumn
    inner: int
    experts: bool
    norms_trained: bool
    width: float
    masks: int
    narrow: int
    narrow_of_experts: int
    widest_cast: int
    hidden_bytes: FloatColumn
    cast_weights: FloatColumn


def kept_inputs(model: ModelSpec, framework: FrameworkProfile, recipe: Recipe, columns: Columns) -> KeptInputs:
    """Of frozen products autograd keeps no input; an adapter keeps its own, as it casts or drops it (PEFT, tuners/lora/
    layer.py, Linear.forward: x.to(lora_A.weight.dtype), then dropout), in float32 where autocast does not make it
    narrow again. Where it does it keeps casts of weights, too; one product of several with the same input has no cast
    of the others."""
    adapter, every = recipe.adapter, adapted(model, recipe)
    base, plain = (framework.weight_bytes,) * 2 if adapter is None else base_bytes(recipe, framework)
    # Hidden states are float32, and products have casts of their own, since the weights that embed are.
    wide = (columns["zero_stage"] == 0) & (framework.kept.autocast and plain > framework.activation_bytes)
    products = {one.target: one.product for one in every}
    named = products if adapter else dict.fromkeys(LINEAR)
    casts = adapter is not None and casts_inputs(framework, adapter)
    dropout = adapter is not None and adapter.dropout > 0
    own = wide | casts | dropout

    def copies(*targets: Target) -> IntColumn:
        number = sum(target in named for target in targets)
        return np.where(own, number, min(1, number))

    rank, alone = adapter.rank if adapter else 0, columns["zero_stage"] == 0
    factors = sum(rank * (one.product.inputs + one.product.outputs) * one.times for one in every)
    of_experts = sum(one.times > 1 for one in every)
    return KeptInputs(
        attention=copies(Target.Q, Target.K, Target.V),
        answer=copies(Target.O) * (casts | dropout),
        block=copies(Target.GATE, Target.UP),
        inner=int(Target.DOWN in named),
        experts=adapter is None or Target.EXPERTS in adapter.targets,
        norms_trained=adapter is None,
        width=FLOAT32_BYTES if casts and not framework.kept.autocast else framework.activation_bytes,
        masks=MASK_BYTES * dropout,
        narrow=rank * (len(every) - of_experts),
        narrow_of_experts=rank * of_experts,
        widest_cast=max((one.inputs for one in products.values()), default=0) * casts,
        hidden_bytes=np.where(wide, FLOAT32_BYTES, framework.activation_bytes),
        cast_weights=np.where(wide, (base == FLOAT32_BYTES) * model.layer_parameters, 0.0)
        + np.where(alone & (casts and framework.kept.autocast), factors, 0.0),
    )


def _latent_width(model: ModelSpec) -> int:
    return model.latent_attention.latent_width if model.latent_attention else 0


def _scores(model: ModelSpec, framework: FrameworkProfile) -> float:
    """Per token: the softmax and, with dropout, its mask and what dropout returns (5 a s in 16 bits)."""
    width = framework.activation_bytes
    values = 2 * width + MASK_BYTES if framework.kept.dropout else width
    return float(model.heads * model.seq_len * values)


def _feed_forward(setting: _Setting, entrance: FloatColumn) -> FloatColumn:
    """Per token. Each product's result, the activation function's and, gated, their product: 2 or 4 of width ffn, or as
    many as SwiGLU keeps."""
    model, framework, columns, _, tp, _, load, inputs = setting
    width, hidden = framework.activation_bytes, model.hidden
    swiglu = model.activation is Activation.SWIGLU
    values = framework.kept.swiglu_values if swiglu else 2 * model.activation.matrices - 2
    each = (values - 1) * width + inputs.inner * (inputs.width + inputs.masks)
    block = hidden * inputs.block * (inputs.width + inputs.masks) / entrance
    if model.experts == 0:
        return block + model.ffn * each / tp
    # Shared experts read the block's input, and are cut by tp as a dense block is.
    shared = model.shared_ffn * each / tp
    inner = model.ffn * width * (values - (not inputs.experts))
    # A copy of a token per expert asked: as it is sent, as its expert reads it, the answer; routing, in float32. Those
    # that came from other ranks are of the fullest one.
    own, held, travels = _of_copies(columns, tp)
    asked = np.where(travels, 2 + 2 * load, 3.0) - (not inputs.experts) * np.where(travels, load, 1.0)
    routing = 2 * model.experts * FLOAT32_BYTES + model.experts * width + model.top_k * 6 * INDEX_BYTES
    per_copy: FloatColumn = (1 / own + (asked - 1) * held) * hidden * width + load * inner / tp
    return block * entrance / np.maximum(entrance, own) + shared + model.top_k * per_copy + routing / own


def _of_copies(columns: Columns, tp: FloatColumn) -> tuple[FloatColumn, FloatColumn, BoolColumn]:
    """Of copies of tokens for experts: over how many ranks of tp those that a rank sends are split, the share of tp's
    tokens that its experts read, and whether they leave the rank. With a degree of their own a rank sends the tokens
    that it has between the blocks, and gathers those of its etp ranks."""
    folded = columns["etp"] > 0
    return np.where(folded, tp, 1.0), expert_tp(columns) / tp, (columns["ep"] > 1) | folded


def expert_load(
    model: ModelSpec, framework: FrameworkProfile, columns: Mapping[str, Any], constants: Constants
) -> FloatColumn:
    """How many times the mean the fullest rank of ep gets of the copies of tokens, in one layer and micro-batch: what
    Megatron logs as its average overload factor. Of routers that are not even, chance has its part as well; a random
    one's, with 4,096 tokens of each of 64 ranks to 8 experts, was 1.013 (marin-community/marin issue 7668)."""
    ep, experts = columns["ep"].astype(np.int64), model.experts
    load: FloatColumn = np.ones(len(ep))
    if experts == 0:
        return load
    degrees = np.flatnonzero(np.bincount(ep))
    of_plan = np.searchsorted(degrees, ep)
    if framework.imbalance != 1:
        load = np.array([max(rank_loads(experts, framework.imbalance, int(ranks))) for ranks in degrees])[of_plan]
    elif framework.routing is not Routing.EVEN:
        above = np.array([busiest_of(int(ranks)) for ranks in degrees])[of_plan]
        # A rank has the mean of several experts' loads; its copies are drawn.
        experts_of = UNEVEN[framework.routing] * constants.router_spread * np.sqrt(ep / experts)
        deviation = np.hypot(experts_of, (tokens_per_rank(model, columns) * model.top_k) ** -0.5)
        load = np.minimum(1 + above * deviation, ep)
    if framework.capacity_factor:
        load = np.clip(load, framework.pads_to_capacity * framework.capacity_factor, framework.capacity_factor)
    return load


def repeated_products(model: ModelSpec, framework: FrameworkProfile) -> tuple[list[Product], list[Product]]:
    """Every second product of attention and of one feed-forward block, in the order in which torchtitan's modules run
    them: those whose results are not kept by selective recomputation by halves. Otherwise none."""
    if framework.kept.selective is not Selective.HALF_PRODUCTS:
        return [], []
    attention, block = list(model.attention_products), list(model.block_products(model.ffn))
    if framework.kept.fused_products:
        block = [block[0], block[-1]]
    elif model.latent_attention is None:
        parts = (model.query_width, model.kv_width, model.value_width)
        attention[:1] = [Product(model.hidden, part, CutSide.OUTPUTS) for part in parts]
    return attention[1::2], block[1::2]


def _selective(setting: _Setting, whole: FloatColumn) -> FloatColumn:
    """Kept by selective recomputation: of Korthikanti et al. all but the scores; or matrix products' results alone, by
    halves those that are not repeated."""
    model, framework, columns, tokens, tp, split, load, _ = setting
    if framework.kept.selective is Selective.ATTENTION:
        scores = 0.0 if framework.fused_attention else _scores(model, framework)
        return whole - tokens * scores / tp
    width, hidden = framework.activation_bytes, model.hidden
    # The input; query, key, value and the attention's answer; the output's product, and its sum over tp.
    summed = np.where(tp > 1, hidden / split, 0.0)
    # In a ring the answers over each other rank's keys are kept: the last rank's, the fullest, are whole.
    ring = columns["context"] == CONTEXTS.index(ContextParallel.RING)
    answers = np.where(ring, columns["cp"], 1)
    inside = model.query_width + answers * model.answer_width + model.kv_width + model.value_width
    attention = hidden / split + (inside / tp + _latent_width(model) / split) + hidden + summed
    of_attention, of_block = repeated_products(model, framework)
    sides = {CutSide.OUTPUTS: tp, CutSide.INPUTS: np.ones_like(tp), CutSide.WHOLE: split}
    for product in of_attention:
        attention = attention - product.outputs / sides[product.cut]
    gated = model.activation.matrices - 1 - sum(product.cut is CutSide.OUTPUTS for product in of_block)
    down = hidden * all(product.cut is CutSide.OUTPUTS for product in of_block)
    if model.experts and framework.kept.repeats_experts:
        # Grouped products are not among those kept; what the choice of experts returned and what was sent are.
        sent = 2 * model.top_k * hidden * (columns["ep"] > 1) * load
        shared = (model.shared_ffn * gated / tp + down + summed) * (model.shared_ffn > 0)
        chosen = model.top_k * (INDEX_BYTES + FLOAT32_BYTES) + model.heads * FLOAT32_BYTES / tp
        return tokens * (width * (attention + shared + sent) + chosen)
    if model.experts:
        # Attention and experts recompute apart, and the norm and the routing between them do not.
        outside = 2 * hidden / split + hidden * (_norm_bytes(model, framework) / width) / split
        own, held, travels = _of_copies(columns, tp)
        experts = model.top_k * hidden * (1 / own + (2 + 2 * travels * load) * held)
        inner = (model.top_k * load * model.ffn * gated + model.shared_ffn * (model.activation.matrices - 1)) / tp
        return tokens * width * (attention + outside + experts + inner)
    inner = model.ffn * gated / tp + down + summed
    return tokens * (width * (attention + inner) + model.heads * FLOAT32_BYTES / tp)


def _norm_bytes(model: ModelSpec, framework: FrameworkProfile) -> float:
    return framework.kept.norm_bytes if model.norm is Norm.RMSNORM else 0.0
