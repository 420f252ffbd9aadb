"""A recipe in the physics: the code's profile under it, and weights by whether they are trained."""

from __future__ import annotations

from dataclasses import replace

from meshtune.search_spaces.physics.framework_profiles import COMPILED_LOSS, FrameworkProfile
from meshtune.search_spaces.recipe import PLAIN, STATES, Offload, Recipe

# A float32 scale for 256 numbers (bitsandbytes, functional.py, quantize_blockwise); of NF4 for 64, 8 bits with another
# scale for 256 of them where it is quantized twice (Dettmers et al. 2023, section 3).
_SCALE = 4 / 256
_BYTES = {4: 0.5 + 4 / 64, 8: 1.0, 16: 2.0, 32: 4.0}
_TWICE = 0.5 + (1 + _SCALE) / 64


def with_recipe(framework: FrameworkProfile, recipe: Recipe) -> FrameworkProfile:
    """The profile of the same code with this recipe. Adapters have their own format where the code keeps no float32
    master beside; states are counted per trained weight. bitsandbytes leaves embeddings in 32 bits (transformers,
    trainer.py, register_module_override)."""
    if recipe == PLAIN:
        return framework
    master = framework.master_bytes
    if recipe.adapter is not None and master == 0:
        width = recipe.adapter.bits / 8
        own: dict[str, Any] = {
            "weight_bytes": width,
            "gradient_bytes": width,
            "reduce_bytes": width,
            "moment_bytes": width,
        }
        framework = replace(framework, **own)
    states, moment = STATES[recipe.optimizer], framework.moment_bytes
    each = min(moment, states.bits / 8 + _SCALE * states.quantized) if states.bits else moment
    layers = states.values * each
    if recipe.fused_loss and not framework.kept.loss_chunks:
        framework = replace(framework, **COMPILED_LOSS, kept=replace(framework.kept, loss_chunks=32))
    return replace(
        framework,
        name=f"{framework.name}, {recipe.words}".removesuffix(", "),
        optimizer_bytes=master + layers,
        more_end_bytes=states.end_values * (moment if states.quantized else each) - layers,
        host_optimizer=framework.host_optimizer or recipe.offload is not Offload.NONE,
    )


def base_bytes(recipe: Recipe, framework: FrameworkProfile) -> tuple[float, float]:
    """Bytes per frozen weight: of the layers' products, and of embedding, norms, head and routers."""
    usual = 2.0 if recipe.adapter or framework.master_bytes else framework.weight_bytes
    own = _BYTES[recipe.base_bits] if recipe.base_bits else usual
    own = _TWICE if recipe.base_bits == 4 and recipe.double_quantization else own
    plain = recipe.plain_bits / 8 if recipe.plain_bits else max(own, 2.0)
    return own, plain
