"""A decoder-only transformer from a ModelSpec, whose weights are the same numbers however it is laid out.

A pipeline stage is the same class with fewer layers and the same parameter names, and initial values depend on the
name and the seed alone, so a stage or a shard equals its part of the whole model. Plain modules: nothing here knows
of meshes. No mixture of experts, no dropout.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.model import Activation, ModelSpec, Norm, Position

NORM_EPSILON = 1e-5
ROPE_BASE = 10_000.0  # Su et al. 2021
INITIAL_STD = 0.02  # GPT-2 (Radford et al. 2019) and Megatron-LM's default


@lru_cache(maxsize=4)
def rotation(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary angles, (length, head_dim / 2) each, in float32."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, length, head_dim): the halves of a head are the pairs."""
    cos, sin = rotation(x.shape[-2], x.shape[-1], x.device)
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1).type_as(x)


def build_norm(spec: ModelSpec) -> nn.Module:
    if spec.norm is Norm.LAYERNORM:
        return nn.LayerNorm(spec.hidden, eps=NORM_EPSILON)
    return nn.RMSNorm(spec.hidden, eps=NORM_EPSILON)


class Attention(nn.Module):
    """Causal self-attention over as many heads as the projections return: all of them, or this rank's."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.rotary = spec.position is Position.ROPE
        self.query = nn.Linear(spec.hidden, spec.hidden, bias=False)
        self.key = nn.Linear(spec.hidden, spec.kv_width, bias=False)
        self.value = nn.Linear(spec.hidden, spec.kv_width, bias=False)
        self.output = nn.Linear(spec.hidden, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        if self.rotary:
            query, key = rotate(query), rotate(key)
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.hidden, spec.ffn, bias=False)
        gated = spec.activation is Activation.SWIGLU
        self.gate = nn.Linear(spec.hidden, spec.ffn, bias=False) if gated else None
        self.down = nn.Linear(spec.ffn, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        out: Tensor = self.down(inner)
        return out


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = build_norm(spec)
        self.attention = Attention(spec)
        self.feed_forward_norm = build_norm(spec)
        self.feed_forward = FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Transformer(nn.Module):
    """The layers `layers` of the model, with the embeddings when `first`, with the final norm and head when `last`.

    Takes token ids when first, else hidden states; returns logits when last, else hidden states.
    """

    def __init__(
        self, spec: ModelSpec, layers: Iterable[int] | None = None, *, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.spec = spec
        learned = first and spec.position is Position.LEARNED
        self.embedding = nn.Embedding(spec.vocab, spec.hidden) if first else None
        self.position = nn.Embedding(spec.seq_len, spec.hidden) if learned else None
        indices = range(spec.layers) if layers is None else layers
        self.layers = nn.ModuleDict({str(index): Layer(spec) for index in indices})
        self.norm = build_norm(spec) if last else None
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False) if last else None
        self.tie()

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            places = torch.arange(x.shape[1], device=x.device)
            x = self.embedding(x)
            if self.position is not None:
                x = x + self.position(places)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    def tie(self) -> None:
        """Make a tied head and the embedding one parameter, where both live here; again after replacing either."""
        if self.spec.tied_head and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def shared_with_another_stage(self) -> nn.Parameter | None:
        """This stage's copy of the tied weight when the other copy lives on another stage."""
        if not self.spec.tied_head or (self.embedding is None) == (self.head is None):
            return None
        return self.get_parameter("head.weight" if self.embedding is None else "embedding.weight")


def stream(seed: int, name: str | int) -> int:
    """A generator's seed for one named sequence of random numbers; torch's CPU generator heeds 32 bits alone."""
    return crc32(f"{seed} {name}".encode())


def initial_values(spec: ModelSpec, name: str, shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """The whole parameter `name` at the start of training, in float32, the same on every rank of one device kind."""
    if name.endswith("norm.weight"):
        return torch.ones(shape, device=device)
    if name.endswith("norm.bias"):
        return torch.zeros(shape, device=device)
    if name == "head.weight" and spec.tied_head:
        name = "embedding.weight"
    generator = torch.Generator(device).manual_seed(stream(seed, name))
    return torch.empty(shape, device=device).normal_(0.0, INITIAL_STD, generator=generator)
