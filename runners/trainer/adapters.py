"""Low-rank products beside those of the layers (LoRA, Hu et al. 2021), and which weights a recipe trains."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshtune.search_spaces.recipe import Recipe


class LowRank(nn.Module):
    """Adds b a x to some outputs of a product of x. rows: of b, those of outputs that this rank computes."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.empty(outputs, rank))
        self.rows = slice(None)

    def forward(self, x: Tensor, product: Tensor) -> Tensor:
        inner = F.linear(x, self.a).flatten(0, -2)
        return torch.addmm(product.flatten(0, -2), inner, self.b[self.rows].T).view_as(product)


# Of a layer, by target.
Adapters = Mapping[str, LowRank]


def adapted(x: Tensor, product: Tensor, targets: Mapping[str, int], adapters: Adapters) -> Tensor:
    """The product of x with what adapters add. targets: in order those that the product joins, and their widths."""
    if not adapters.keys() & targets.keys():
        return product
    parts = zip(targets, torch.split(product, list(targets.values()), -1), strict=True)
    sums = [adapters[target](x, part) if target in adapters else part for target, part in parts]
    return sums[0] if len(sums) == 1 else torch.cat(sums, -1)


def is_trained(recipe: Recipe, name: str) -> bool:
    """Whether the recipe trains the parameter of this name."""
    part, _, rest = name.partition(".")
    if recipe.adapter is not None:
        return ".adapters." in name or (recipe.trained_ends and part != "layers")
    if part == "layers":
        return int(rest.partition(".")[0]) >= recipe.frozen_layers
    return not (recipe.frozen_embedding if part in ("embedding", "position") else recipe.frozen_head)
