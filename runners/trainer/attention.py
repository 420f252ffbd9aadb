"""Causal self-attention with rotary positions, over the places of the sequence that this rank holds.

How queries see keys that lie on other ranks is decided by whoever replaces `Attention.attend` (see `context`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshtune.search_spaces.model import ModelSpec, Position

ROPE_BASE = 10_000.0  # Su et al. 2021

# Which places of the sequence a rank holds, in the order it holds them.
Places = tuple[range, ...]
# Query, key and value of (batch, heads, length, head_dim) to what the heads read, of the query's shape.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@lru_cache(maxsize=4)
def place_tensor(places: Places, device: torch.device) -> Tensor:
    """The places as indices."""
    return torch.cat([torch.arange(part.start, part.stop, device=device) for part in places])


@lru_cache(maxsize=4)
def rotation(places: Places, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary angles, (length, head_dim / 2) each, in float32."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(place_tensor(places, device).float(), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, places: Places) -> Tensor:
    """Rotary position embedding of (batch, heads, length, head_dim): the halves of a head are the pairs."""
    cos, sin = rotation(places, x.shape[-1], x.device)
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1).type_as(x)


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention where this rank holds the whole sequence."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1])


class Attention(nn.Module):
    """Causal self-attention over as many heads as the projections return: all of them, or this rank's."""

    def __init__(self, spec: ModelSpec, places: Places) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.rotary = spec.position is Position.ROPE
        self.places = places
        self.attend: Attend = attend_causally
        self.query = nn.Linear(spec.hidden, spec.hidden, bias=False)
        self.key = nn.Linear(spec.hidden, spec.kv_width, bias=False)
        self.value = nn.Linear(spec.hidden, spec.kv_width, bias=False)
        self.output = nn.Linear(spec.hidden, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        if self.rotary:
            query, key = rotate(query, self.places), rotate(key, self.places)
        mixed = self.attend(query, key, value)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)
