"""What a recipe leaves in memory, to the byte; what it refuses. Its training is test_weights.py's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from meshtune.runners.trainer.exact import exact_peak
from meshtune.runners.trainer.job import require_supported
from meshtune.runners.trainer.model import Transformer
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.recipe import PLAIN, Adapter, Companion, Recipe

MODEL = ModelSpec(name="m", layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=256, seq_len=32)
RANK, RANKS = 8, 2
ADAPTER = Adapter(rank=RANK)
SOME = Adapter(rank=RANK, targets=("q", "v", "down"))
EMBEDDING, HEAD = 256 * 64, 256 * 64 + 64
LAYER = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64
ALL = EMBEDDING + HEAD + 2 * LAYER
# Rank times inputs and outputs, layer by layer: q, k, v, o, gate, up, down.
FACTORS = {"q": 64 + 64, "k": 64 + 32, "v": 64 + 32, "o": 64 + 64, "gate": 64 + 128, "up": 64 + 128, "down": 128 + 64}
# Trained weights, frozen ones, and the tensors that the trained ones are.
COUNTS = {
    "plain": (ALL, 0, 2 * 6 + 3),
    "lora": (2 * RANK * sum(FACTORS.values()), ALL, 2 * 14),
    "some and ends": (2 * RANK * (128 + 96 + 192) + EMBEDDING + HEAD, 2 * LAYER, 2 * 6 + 3),
    "one layer": (LAYER + HEAD, LAYER + EMBEDDING, 6 + 2),
    "sgd": (2 * RANK * sum(FACTORS.values()), ALL, 2 * 14),
}


def recipe_of(name: str, bits: int) -> Recipe:
    return {
        "plain": PLAIN,
        "lora": Recipe(adapter=ADAPTER, base_bits=bits),
        "some and ends": Recipe(adapter=SOME, base_bits=bits, trained_ends=True),
        "one layer": Recipe(frozen_layers=1, frozen_embedding=True),
        "sgd": Recipe(adapter=ADAPTER, base_bits=bits, optimizer="sgd"),
    }[name]


def bytes_by_hand(name: str, zero: int, width: int) -> int:
    """Of weights, gradients and the optimizer's states on one of two ranks. FSDP2 keeps trained weights in float32,
    the flat optimizer a float32 copy beside narrower ones."""
    trained, frozen, tensors = COUNTS[name]
    moments = 0 if name == "sgd" else 8
    counters = 0 if name == "sgd" else 4
    if zero >= 2:
        return (trained * (4 + 4 + moments) + frozen * width) // RANKS + counters * tensors
    copy = 4 if width < 4 else 0
    # In float32 ZeRO 1 has the part that it moves apart from the weights, which are gathered into from all.
    states = (copy + moments) * trained // (RANKS if zero == 1 else 1)
    return (width + 4) * trained + states + width * frozen + counters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_only_what_is_trained_has_gradients_and_states_and_the_rest_lies_in_the_models_format(zero, dtype, make_job):
    width = 4 if dtype == "float32" else 2

    def beside(name: str) -> int:
        plan = {"dp": RANKS, "zero_stage": zero}
        job = make_job(model=SHAPES, plan=plan, dtype=dtype, recipe=recipe_of(name, 8 * width))
        return exact_peak(job, 0).lasting_bytes - bytes_by_hand(name, zero, width)

    # Tables of the rotation and the like.
    rest = {name: beside(name) for name in COUNTS}
    assert set(rest.values()) == {rest["plain"]}
    assert 0 < rest["plain"] < 20_000


SHAPES = {name: getattr(MODEL, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")}


def kept_bytes(*targets: str) -> int:
    """What a frozen layer keeps of 3 sequences for the backward pass, beside weights."""
    with torch.device("cpu"):
        model = Transformer(MODEL)
    if targets:
        model.layer_list()[0].adapt(MODEL, Adapter(rank=RANK, targets=targets))
    model.freeze(Recipe(adapter=ADAPTER), torch.float32)
    for weight in model.parameters():
        nn.init.ones_(weight)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in weights:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        answer = model.layer_list()[0](torch.randn(3, 32, 64).requires_grad_())
    assert answer.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize(
    ("targets", "values"),
    [
        (("q",), 64 + RANK),
        (("q", "k", "v"), 64 + 3 * RANK),
        (("o",), RANK),  # attention keeps what it answers
        (("up",), 64 + RANK),
        (("gate", "up"), 64 + 2 * RANK),
        (("down",), 128 + RANK),
        (("q", "k", "v", "o", "gate", "up", "down"), 64 + 64 + 128 + 7 * RANK),
    ],
    ids=str,
)
def test_a_frozen_product_keeps_its_input_for_an_adapter_alone(targets, values):
    assert kept_bytes(*targets) - kept_bytes() == 3 * 32 * values * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "tolerance"),
    [
        ({"dp": 2, "zero_stage": 1, "grad_accum_steps": 2}, 0.05),
        # What gloo gathers is let go when a thread of its own is done: 7 % more in some runs.
        pytest.param({"dp": 2, "zero_stage": 3, "grad_accum_steps": 2}, 0.1, marks=pytest.mark.long),
        pytest.param({"pp": 2, "dp": 2, "zero_stage": 1, "grad_accum_steps": 2}, 0.05, marks=pytest.mark.long),
        pytest.param({"tp": 2, "micro_batch_size": 4, "recompute": "selective"}, 0.05, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_every_rank_takes_what_was_estimated(plan, tolerance, run_job, make_job):
    shapes = {"layers": 4, "hidden": 128, "ffn": 384, "vocab": 1024, "seq_len": 64}
    job = make_job(plan=plan, model=shapes, recipe=Recipe(adapter=ADAPTER, base_bits=32))
    finished = run_job(job)
    assert finished.status == 0, finished.output
    real = finished.measurement.peak_memory_bytes
    assert [exact_peak(job, rank).peak_bytes for rank in range(len(real))] == pytest.approx(real, rel=tolerance)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"adapter": ADAPTER}, "recipe.base_bits: frozen weights are in float32, .* give 32"),
        ({"adapter": ADAPTER, "base_bits": 4}, "recipe.base_bits: "),
        ({"plain_bits": 16}, "recipe.plain_bits: .* give 32"),
        ({"optimizer": "adamw_8bit"}, "recipe.optimizer: it has adamw and sgd"),
        ({"optimizer": "muon"}, "recipe.optimizer: "),
        ({"offload": "optimizer"}, "recipe.offload: "),
        ({"offload_activations": True}, "recipe.offload_activations: "),
        ({"trained_tower": True}, "recipe.trained_tower: "),
        ({"rows_per_sample": 2}, "recipe.rows_per_sample: "),
        ({"beside": (Companion(role="reference"),)}, "recipe.beside: "),
        ({"mean_tokens": 8}, "recipe.mean_tokens: "),
        ({"frozen_layers": 3}, "recipe.frozen_layers: the model has 2 layers"),
        ({"frozen_layers": 2, "frozen_embedding": True, "frozen_head": True}, "nothing is left to train"),
        ({"adapter": Adapter(dora=True), "base_bits": 32}, "recipe.adapter.dora: "),
        ({"adapter": Adapter(dropout=0.1), "base_bits": 32}, "recipe.adapter.dropout: "),
        ({"adapter": Adapter(bits=16), "base_bits": 32}, "recipe.adapter.bits: .* give 32"),
    ],
    ids=str,
)
def test_what_the_trainer_does_not_do_is_refused_by_its_key(recipe, message, make_job):
    with pytest.raises(InvalidValue, match=message):
        require_supported(make_job(recipe=Recipe(**recipe)))
