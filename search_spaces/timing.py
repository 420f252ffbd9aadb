"""STUB, being written."""

from __future__ import annotations

import numpy as np

from search_spaces.columns import Columns, FloatColumn
from search_spaces.constants import Constants
from search_spaces.estimates import TimePart, Training


def time_parts(training: Training, columns: Columns, constants: Constants) -> dict[TimePart, FloatColumn]:
    """Seconds per optimizer step by part."""
    c = columns
    peak = training.cluster.device.peak_flops[training.framework.dtype]
    tokens = c["micro_batch_size"] * c["grad_accum_steps"] * c["dp"] * training.model.seq_len
    devices = c["tp"] * c["pp"] * c["cp"] * c["dp"]
    compute = tokens * training.model.flops_per_token / (devices * peak * constants.matmul_efficiency)
    bubble = compute * (c["pp"] - 1) / (c["grad_accum_steps"] * c["vpp"])
    zero = np.zeros(len(c["tp"]))
    return {part: zero for part in TimePart} | {TimePart.COMPUTE: compute, TimePart.BUBBLE: bubble}
