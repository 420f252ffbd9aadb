"""Which places of the sequence a rank holds."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

# In the order it holds them.
Places = tuple[range, ...]


@lru_cache(maxsize=4)
def place_tensor(places: Places, device: torch.device) -> Tensor:
    return torch.cat([torch.arange(part.start, part.stop, device=device) for part in places])
