"""What a plan says is recomputed is: equal losses alone would not show it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from counting import Counting

from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel.sharding import materialize
from meshtune.runners.trainer.train import recompute_layers
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Recompute, Selective

MIXTURE: dict[str, object] = {"experts": 4, "top_k": 2}


def backward_counts(
    kind: Recompute, interval: int = 1, selective: Selective = Selective.PRODUCTS, **shapes: object
) -> Counter[str]:
    sizes = {"layers": 4, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 32, "seq_len": 8}
    with torch.device("meta"):
        model = Transformer(ModelSpec(**{"name": "m"} | sizes | shapes))
    recompute_layers(model, kind, interval, selective)
    materialize(model, torch.device("cpu"), 0)
    with Counting() as counting:
        loss = model(torch.arange(8)[None]).logsumexp(-1).sum()
        counting.counts.clear()
        loss.backward()
    return counting.counts


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_full_recomputation_repeats_every_so_many_th_layer(interval):
    kept, repeated = backward_counts(Recompute.NONE), backward_counts(Recompute.FULL, interval)
    layers = len(range(0, 4, interval))
    # Of four matrix products of a layer the last one's result is needed by nothing; torch stops before it.
    assert repeated["mm"] - kept["mm"] in (3 * layers, 4 * layers)
    assert repeated["silu"] - kept["silu"] == layers


@pytest.mark.parametrize("shapes", [{}, MIXTURE], ids=["dense", "mixture"])
def test_selective_recomputation_repeats_what_is_cheap_alone(shapes):
    kept, repeated = backward_counts(Recompute.NONE, **shapes), backward_counts(Recompute.SELECTIVE, **shapes)
    for product in ("mm", "_grouped_mm", "_scaled_dot_product_flash_attention_for_cpu"):
        assert repeated[product] == kept[product]
    assert repeated["silu"] - kept["silu"] == 4


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# Of each of four layers: products with weights, attention kernels and activation functions that are computed again. Of
# query, key and value in one, output, gate and up in one, and down the second and the fourth; beside experts the
# second, and of theirs the second. What a block's last product returns is needed by nothing: a layer's down and, beside
# experts, where attention repeats for itself, its output.
REPEATED = [
    (Selective.ATTENTION, {}, {"mm": 0, ATTENTION: 1, "silu": 0}),
    (Selective.ATTENTION, MIXTURE, {"mm": 0, "_grouped_mm": 0, ATTENTION: 1, "silu": 0}),
    (Selective.HALF_PRODUCTS, {}, {"mm": 1, ATTENTION: 0, "silu": 1}),
    (Selective.HALF_PRODUCTS, MIXTURE, {"mm": 0, "_grouped_mm": 0, ATTENTION: 0, "silu": 1}),
    (Selective.HALF_PRODUCTS, {"activation": "gelu"}, {"mm": 1, ATTENTION: 0, "gelu": 1}),
]


@pytest.mark.parametrize(("selective", "shapes", "repeated"), REPEATED)
def test_selective_recomputation_repeats_what_its_name_says(selective, shapes, repeated):
    kept = backward_counts(Recompute.NONE, **shapes)
    counts = backward_counts(Recompute.SELECTIVE, selective=selective, **shapes)
    assert {name: (counts[name] - kept[name]) / 4 for name in repeated} == repeated
