"""STUB, being written."""

from __future__ import annotations

import numpy as np

from search_spaces.columns import Columns, FloatColumn
from search_spaces.constants import Constants
from search_spaces.estimates import MemoryPart, Training


def memory_parts(training: Training, columns: Columns, constants: Constants) -> dict[MemoryPart, FloatColumn]:
    """Bytes by part of the most loaded rank under each plan."""
    c, framework = columns, training.framework
    per_rank = training.model.parameters / (c["tp"] * c["pp"])
    zero = np.zeros(len(c["tp"]))
    return {
        MemoryPart.WEIGHTS: per_rank * framework.weight_bytes,
        MemoryPart.GRADIENTS: per_rank * framework.gradient_bytes,
        MemoryPart.OPTIMIZER: per_rank * framework.optimizer_bytes,
        MemoryPart.ACTIVATIONS: zero,
        MemoryPart.LOGITS: zero,
        MemoryPart.GATHERED: zero,
        MemoryPart.BUFFERS: zero + constants.memory_offset_bytes,
    }
