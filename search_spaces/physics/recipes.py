"""A recipe in the physics: the code's profile under it, products with adapters, and the weights that are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from meshtune.search_spaces.columns import SCHEDULES, Columns, FloatColumn, expert_tp
from meshtune.search_spaces.layer_shapes import CutSide, Product
from meshtune.search_spaces.model import ModelSpec, layer_kinds, met_parameters
from meshtune.search_spaces.physics.framework_profiles import COMPILED_LOSS, FrameworkProfile
from meshtune.search_spaces.plan import Schedule
from meshtune.search_spaces.recipe import LINEAR, PLAIN, Adapter, Offload, Recipe, Target

# A float32 scale for 256 numbers (bitsandbytes, functional.py, quantize_blockwise); of NF4 for 64, and 8 bits with
# another scale for 256 of them where scales are quantized (Dettmers et al. 2023, section 3).
_SCALE = 4 / 256
_NF4, _NF4_TWICE = 0.5 + 4 / 64, 0.5 + (1 + _SCALE) / 64
# The smallest format that weights outside of the layers' products have.
_PLAIN_BYTES = 2.0


def with_recipe(framework: FrameworkProfile, recipe: Recipe) -> FrameworkProfile:
    """The profile of the same code with this recipe. Adapters have their own format where the code keeps no float32
    master beside; states are counted per trained weight. bitsandbytes leaves embeddings in 32 bits (transformers,
    trainer.py, register_module_override)."""
    if recipe == PLAIN:
        return framework
    master = framework.master_bytes
    if recipe.adapter is not None and master == 0:
        width = recipe.adapter.bits / 8
        own = dict.fromkeys(("weight_bytes", "gradient_bytes", "reduce_bytes", "moment_bytes"), width)
        framework = replace(framework, **own)  # type: ignore[arg-type]  # fields of bytes alone
    states, moment = recipe.optimizer.states, framework.moment_bytes
    each = min(moment, states.bits / 8 + _SCALE * states.quantized) if states.bits else moment
    layers = states.values * each
    kept = framework.kept
    if recipe.fused_loss and not kept.loss_chunks:
        kept = replace(kept, loss_chunks=32)
    if recipe.fused_loss or recipe.loss_kernel:
        framework = replace(framework, **COMPILED_LOSS)
    if recipe.layer_kernels:
        # Liger-Kernel, ops/rms_norm.py and swiglu.py: the input, and the two inputs beside what the next product reads.
        kept = replace(kept, norm_bytes=0, swiglu_values=min(3, kept.swiglu_values))
    return replace(
        framework,
        name=f"{framework.name}, {recipe.words}".removesuffix(", "),
        optimizer_bytes=master + layers,
        step_bytes=framework.step_bytes + states.at_step * moment,
        kept=kept,
        more_end_bytes=states.end_values * (moment if states.quantized else each) - layers,
        host_optimizer=framework.host_optimizer or recipe.offload is not Offload.NONE,
    )


def flops_per_token(model: ModelSpec, recipe: Recipe) -> float:
    """`ModelSpec.flops_per_token` without the 2 per weight and token that the gradients of frozen weights would take;
    adapters' own, below 1 % of it, left out."""
    layers = sum(count * met_parameters(kind) for count, kind in layer_kinds(model))
    frozen = layers * (1 if recipe.adapter else min(1.0, recipe.frozen_layers / model.layers))
    return model.flops_per_token - 2 * (frozen + model.vocab * model.hidden * (not recipe.trains_head))


def in_rows(recipe: Recipe, columns: Columns, row_tokens: int) -> Columns:
    """The columns with micro-batches counted in rows of so many tokens, where a sample has several; of generated rows,
    which nobody pads, in as many as are at the fullest."""
    if recipe.rows_per_sample > 1:
        columns = {**columns, "micro_batch_size": columns["micro_batch_size"] * recipe.rows_per_sample}
    if recipe.rollout is None:
        return columns
    size, every = columns["micro_batch_size"], columns["micro_batch_size"] * columns["grad_accum_steps"]
    packed = recipe.rollout.update_tokens * columns["cp"] / row_tokens
    fullest: Any = at_fullest(recipe, size, row_tokens, packed, every)
    passes = np.ceil(every / fullest).astype(np.int64) if recipe.rollout.update_tokens else columns["grad_accum_steps"]
    return {**columns, "micro_batch_size": fullest, "grad_accum_steps": passes}


def at_fullest(recipe: Recipe, rows: Any, row_tokens: int, packed: Any, every: Any) -> Any:
    """Of so many rows the tokens at the fullest, in longest rows of `row_tokens`; of passes that are packed, what one
    may hold where that is less than `every` row. The sum of n rows strays from its mean by at most what one row does
    and the root of n."""
    mean = min(1.0, recipe.mean_row(row_tokens) / row_tokens)
    if np.all(packed == 0):
        return rows * mean + np.sqrt(rows) * (1 - mean)
    return np.clip(packed, 1.0, every * mean + np.sqrt(every) * (1 - mean))


def base_bytes(recipe: Recipe, framework: FrameworkProfile) -> tuple[float, float]:
    """Bytes per frozen weight: of the layers' products, and of embedding, norms, head and routers."""
    usual = _PLAIN_BYTES if recipe.adapter or framework.master_bytes else framework.weight_bytes
    usual = min(usual, framework.activation_bytes) if framework.probed else usual
    fewer = {0: usual, 4: _NF4_TWICE if recipe.double_quantization else _NF4}
    own = fewer.get(recipe.base_bits, recipe.base_bits / 8)
    return own, recipe.plain_bits / 8 if recipe.plain_bits else max(own, _PLAIN_BYTES)


def casts_inputs(framework: FrameworkProfile, adapter: Adapter) -> bool:
    """Whether inputs are cast to the wider format of adapters' weights, each product's by itself."""
    return adapter.copies_inputs and framework.weight_bytes > framework.activation_bytes


class Adapted(NamedTuple):
    """A product with an adapter. times: in a layer; of experts all that there are."""

    target: Target
    product: Product
    times: int


def adapted(kind: ModelSpec, recipe: Recipe) -> list[Adapted]:
    """Of a layer of this kind. Queries, keys and values are three products; those of latent attention but the last
    all count as q."""
    if recipe.adapter is None:
        return []
    attention = list(kind.attention_products)
    names = [*[Target.Q] * (len(attention) - 1), Target.O]
    if kind.latent_attention is None:
        reads = (kind.query_width, kind.kv_width, kind.value_width)
        attention[:1] = [Product(kind.hidden, each, CutSide.OUTPUTS) for each in reads]
        names = list(LINEAR[:4])
    named = [Adapted(name, product, 1) for name, product in zip(names, attention, strict=True)]
    for width, times in ((kind.ffn, kind.experts or 1), (kind.shared_ffn, 1)):
        block = kind.block_products(width)
        if times == 1 or Target.EXPERTS in recipe.adapter.targets:
            named += [Adapted(name, one, times) for name, one in zip(LINEAR[7 - len(block) :], block, strict=True)]
    return [one for one in named if one.target in recipe.adapter.targets]


def trained_layers(
    model: ModelSpec, recipe: Recipe, columns: Mapping[str, Any], stage: Any, all_weights: tuple[Any, Any]
) -> tuple[FloatColumn, FloatColumn]:
    """Trained weights of one layer of each kind on one rank, kinds x plans: those that all data-parallel ranks share,
    and those of its experts; in the mean over the stage's layers. all_weights: the same of all weights."""
    adapter = recipe.adapter
    if adapter is None:
        share = trained_share(model, recipe, columns, stage)
        return all_weights[0] * share, all_weights[1] * share
    tp, ep, of_experts = columns["tp"], columns["ep"], expert_tp(columns)
    dense, experts = np.zeros_like(all_weights[0]), np.zeros_like(all_weights[1])
    for row, (_, kind) in enumerate(layer_kinds(model)):
        for _, product, times in adapted(kind, recipe):
            cut = of_experts if times > 1 else tp
            inputs = product.inputs / (cut if product.cut is CutSide.INPUTS else 1)
            outputs = product.outputs / (cut if product.cut is CutSide.OUTPUTS else 1)
            own = adapter.rank * (inputs + outputs) + outputs * adapter.dora
            if times > 1:
                experts[row] += times / ep * own
            else:
                dense[row] += own
    return dense, experts


def trained_share(model: ModelSpec, recipe: Recipe, columns: Mapping[str, Any], stage: Any) -> FloatColumn:
    """Of a stage's layers that have no adapters, the share that is trained: all behind the first `frozen_layers`."""
    pp, vpp = columns["pp"], columns["vpp"]
    if recipe.frozen_layers == 0:
        return np.ones(len(pp))
    frozen, share = recipe.frozen_layers / model.layers * pp * vpp, np.zeros(len(pp))
    back = columns["schedule"] == SCHEDULES.index(Schedule.ZBV)
    for number in range(int(np.max(vpp))):
        chunk = number * pp + np.where(back & (number == 1), pp - 1 - stage, stage)
        share = share + np.where(number < vpp, np.clip(chunk + 1 - frozen, 0.0, 1.0), 0.0)
    trained: FloatColumn = share / vpp
    return trained
