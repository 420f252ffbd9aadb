"""A decoder-only transformer from a ModelSpec, whose weights are the same numbers however it is laid out.

A stage or a shard has the parameter names of the whole model, and initial values depend on the name and the seed alone.
Nothing here knows of meshes. No dropout."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import torch
from torch import Tensor, nn

from meshtune.runners.trainer.blocks import Attention, FeedForward, Mixture, Places, Recompute, place_tensor
from meshtune.runners.trainer.job import Router
from meshtune.search_spaces.model import ModelSpec, Norm, Position

NORM_EPSILON = 1e-5
INITIAL_STD = 0.02  # GPT-2 (Radford et al. 2019) and Megatron-LM's default


def build_norm(spec: ModelSpec) -> nn.Module:
    if spec.norm is Norm.LAYERNORM:
        return nn.LayerNorm(spec.hidden, eps=NORM_EPSILON)
    return nn.RMSNorm(spec.hidden, eps=NORM_EPSILON)


class Layer(nn.Module):
    """Attention and feed-forward block, each with its norm and residual.

    recompute, recompute_attention: how to run all of it, or its first half, without keeping all activations; called
    inside of whatever wraps the layer, so that a recomputation finds the weights in place."""

    def __init__(self, spec: ModelSpec, places: Places, experts: range, router: Router) -> None:
        super().__init__()
        self.recompute: Recompute | None = None
        self.recompute_attention: Recompute | None = None
        self.attention_norm = build_norm(spec)
        self.attention = Attention(spec, places)
        self.feed_forward_norm = build_norm(spec)
        self.feed_forward = Mixture(spec, experts, places, router) if spec.experts else FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        return self._blocks(x) if self.recompute is None else self.recompute(self._blocks, x)

    def _blocks(self, x: Tensor) -> Tensor:
        x = self._attend(x) if self.recompute_attention is None else self.recompute_attention(self._attend, x)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.attention(self.attention_norm(x))
        return out


class Transformer(nn.Module):
    """Some layers of the model, with the embeddings when `first`, with the final norm and head when `last`.

    Takes token ids when first, else hidden states; returns logits when last, else hidden states. places: where in the
    sequence its tokens stand; experts: which ones it holds; both default to all."""

    def __init__(
        self,
        spec: ModelSpec,
        layers: Iterable[int] | None = None,
        *,
        first: bool = True,
        last: bool = True,
        places: Places | None = None,
        experts: range | None = None,
        router: Router = Router.LEARNED,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.places = places or (range(spec.seq_len),)
        learned = first and spec.position is Position.LEARNED
        self.embedding = nn.Embedding(spec.vocab, spec.hidden) if first else None
        self.position = nn.Embedding(spec.seq_len, spec.hidden) if learned else None
        self.layers: nn.ModuleDict = nn.ModuleDict()
        for index in range(spec.layers) if layers is None else layers:
            held = range(spec.experts) if experts is None else experts
            self.layers[str(index)] = Layer(spec, self.places, held, router)
        self.norm = build_norm(spec) if last else None
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False) if last else None
        self.tie()

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            tokens, x = x, self.embedding(x)
            if self.position is not None:
                x = x + self.position(place_tensor(self.places, tokens.device))
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    def tie(self) -> None:
        """Make a tied head and the embedding one parameter, where both live here; again after replacing either."""
        if self.spec.tied_head and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def layer_list(self) -> list[Layer]:
        return [layer for layer in self.layers.values() if isinstance(layer, Layer)]

    def mixtures(self) -> list[Mixture]:
        blocks = (layer.feed_forward for layer in self.layer_list())
        return [block for block in blocks if isinstance(block, Mixture)]

    def shared_with_another_stage(self) -> nn.Parameter | None:
        """This stage's copy of the tied weight when the other copy lives on another stage."""
        if not self.spec.tied_head or (self.embedding is None) == (self.head is None):
            return None
        return self.get_parameter("head.weight" if self.embedding is None else "embedding.weight")


def stream(seed: int, name: str | int) -> int:
    """A generator's seed for one named sequence of random numbers; torch's CPU generator heeds 32 bits alone."""
    return crc32(f"{seed} {name}".encode())


def initial_values(spec: ModelSpec, name: str, shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """The whole parameter at the start of training, in float32, the same on every rank of one device kind."""
    if name.endswith("norm.weight"):
        return torch.ones(shape, device=device)
    if name.endswith("norm.bias"):
        return torch.zeros(shape, device=device)
    if name == "head.weight" and spec.tied_head:
        name = "embedding.weight"
    generator = torch.Generator(device).manual_seed(stream(seed, name))
    return torch.empty(shape, device=device).normal_(0.0, INITIAL_STD, generator=generator)
