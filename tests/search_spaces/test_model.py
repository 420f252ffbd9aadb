"""Parameters and FLOPs of a model equal what is counted by hand and what its authors published."""

from __future__ import annotations

import pytest

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.presets import described, model_presets

BARE = {"layers": 1, "hidden": 4, "heads": 2, "ffn": 8, "vocab": 16, "seq_len": 8}


def preset(name: str) -> ModelSpec:
    return read_value(ModelSpec, described(model_presets()[name]))


@pytest.mark.parametrize(
    ("shapes", "parameters"),
    [
        # embedding 64, q k v o 4 * 16, three matrices of 4 * 8, two norms of 4, final norm 4, head 64
        ({}, 64 + 64 + 96 + 8 + 4 + 64),
        ({"tied_head": True}, 64 + 64 + 96 + 8 + 4),
        ({"activation": "gelu"}, 64 + 64 + 64 + 8 + 4 + 64),
        ({"norm": "layernorm"}, 64 + 64 + 96 + 16 + 8 + 64),
        ({"position": "learned"}, 64 + 32 + 64 + 96 + 8 + 4 + 64),
        # one key/value head of 2 instead of two: k and v are 4 * 2 each
        ({"kv_heads": 1}, 64 + 48 + 96 + 8 + 4 + 64),
        ({"layers": 3}, 64 + 3 * (64 + 96 + 8) + 4 + 64),
        # four experts and a router of 4 * 4
        ({"experts": 4, "top_k": 2}, 64 + 64 + 4 * 96 + 16 + 8 + 4 + 64),
    ],
)
def test_parameters_are_those_counted_by_hand(make_model, shapes, parameters):
    assert make_model(**BARE | shapes).parameters == parameters


def test_llama_8b_has_exactly_the_weights_of_its_checkpoint():
    assert preset("llama3-8b").parameters == 8_030_261_248
    assert preset("llama3-70b").parameters == 70_553_706_496


@pytest.mark.parametrize(
    ("shapes", "met"),
    [
        ({}, 64 + 96),
        ({"kv_heads": 1, "activation": "gelu"}, 48 + 64),
        ({"experts": 4, "top_k": 2}, 64 + 2 * 96 + 16),
        ({"norm": "layernorm", "position": "learned", "tied_head": True}, 64 + 96),
    ],
)
def test_flops_are_six_per_weight_met_and_twelve_per_position(make_model, shapes, met):
    model = make_model(**BARE | shapes | {"layers": 3})
    assert model.flops_per_token == 6 * (3 * met + 16 * 4) + 12 * 3 * 4 * 8


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"heads": 3}, r"^heads: heads\(3\) does not divide hidden\(512\)$"),
        ({"kv_heads": 3}, r"^kv_heads: kv_heads\(3\) does not divide heads\(8\)$"),
        ({"kv_heads": 16}, r"^kv_heads: kv_heads\(16\) does not divide heads\(8\)$"),
        ({"hidden": 24, "heads": 8}, r"^position: rope needs an even head size, but it is 3$"),
        ({"top_k": 2}, r"^top_k: top_k\(2\) must lie between 1 and experts\(0\), or both be 0$"),
        ({"experts": 4}, r"^top_k: top_k\(0\) must lie between 1 and experts\(4\)"),
        ({"experts": 4, "top_k": 5}, r"^top_k: top_k\(5\) must lie between 1 and experts\(4\)"),
        ({"layers": 0}, "^layers: must be at least 1, not 0$"),
        ({"ffn": 2**31}, "^ffn: must be at most 2147483647, not 2147483648$"),
        ({"vocab": 10.5}, "^vocab: must be an integer, not 10.5$"),
        ({"kv_heads": -1}, "^kv_heads: must be at least 0, not -1$"),
        ({"experts": -1, "top_k": -1}, "^experts: .*; top_k: .*not -1$"),
        ({"norm": "batchnorm"}, "^norm: must be one of layernorm, rmsnorm, not 'batchnorm'$"),
        ({"activation": None}, "^activation: must be one of gelu, swiglu, not None$"),
        (
            {"heads": 3, "position": "none", "top_k": 1},
            r"^position: must be one of learned, rope, not 'none'; heads: .*; kv_heads.*; top_k: ",
        ),
    ],
)
def test_shapes_that_do_not_go_together_are_refused_with_the_numbers(make_model, shapes, message):
    if shapes.get("heads") == 3 and "position" in shapes:
        shapes = shapes | {"kv_heads": 2}
    with pytest.raises(InvalidValue, match=message):
        make_model(**shapes)
