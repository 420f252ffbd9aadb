"""What plans should cost: values by part, as columns, for the most loaded rank, with how sure they are.

`search_spaces.physics.estimate.estimate` makes them; the formulas live in `memory` and `timing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import pi, sqrt

import numpy as np

from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.columns import Columns, FloatColumn
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profile import FrameworkProfile

# What a rank can fill of its device: on CUDA the driver's context, the communication library's buffers and what the
# allocator cannot use lie outside of the peak that PyTorch reports; a CPU rank has its cap.
# See docs/explanation/physics-memory.md.
USABLE_SHARE = {DeviceKind.CUDA: 0.9, DeviceKind.CPU: 1.0}


@dataclass(frozen=True, slots=True)
class Training:
    """What is estimated, the plan aside: one model, trained by one code on one cluster."""

    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkProfile


class MemoryPart(StrEnum):
    """What a rank's memory holds at its fullest moment.

    ACTIVATIONS: kept for the backward passes of all micro-batches in flight, with the working set of the layer at hand.
    LOGITS: of the last stage's loss. GATHERED: ZeRO-3's whole weights of the units at hand, and reductions' buffers.
    BUFFERS: receive buffers, libraries' workspaces, the device's context, the allocator's slack.
    """

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    GATHERED = "gathered"
    BUFFERS = "buffers"


class TimePart(StrEnum):
    """Where a step's time goes; what runs beside computation without lengthening it is in none.

    COMPUTE: forward and backward passes. RECOMPUTE: activations computed again. TP, CP, EP: collectives in the layers.
    SEND_RECEIVE: between stages. BUBBLE: stages idle while the pipeline fills and drains. DP: gradients' reduction and
    ZeRO's gathers. OPTIMIZER: the update.
    """

    COMPUTE = "compute"
    RECOMPUTE = "recompute"
    TP = "tp"
    CP = "cp"
    EP = "ep"
    SEND_RECEIVE = "send_receive"
    BUBBLE = "bubble"
    DP = "dp"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by part of the most loaded rank. log_sd: standard deviation of log(real peak / peak_bytes), per plan."""

    parts: Mapping[MemoryPart, FloatColumn]
    log_sd: FloatColumn

    @property
    def peak_bytes(self) -> FloatColumn:
        """The expected peak: the sum of the parts."""
        total: FloatColumn = np.sum(list(self.parts.values()), axis=0)
        return total

    def fits(self, memory_bytes: float) -> FloatColumn:
        """The probability that the real peak is at most `memory_bytes`; its logarithm scatters as Student's t."""
        return heavy_cdf(np.log(memory_bytes / self.peak_bytes) / self.log_sd)


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """Seconds per optimizer step by part. log_sd: standard deviation of log(real step / step_s), per plan."""

    parts: Mapping[TimePart, FloatColumn]
    log_sd: FloatColumn

    @property
    def step_s(self) -> FloatColumn:
        """The expected step: the sum of the parts."""
        total: FloatColumn = np.sum(list(self.parts.values()), axis=0)
        return total


@dataclass(frozen=True, slots=True)
class Estimates:
    """The costs of plans (rows of `columns`) of one training."""

    training: Training
    columns: Columns
    memory: MemoryEstimate
    time: TimeEstimate

    def __len__(self) -> int:
        return len(self.columns["tp"])

    @property
    def fits(self) -> FloatColumn:
        """The probability that each plan fits what a rank can use of the device's memory."""
        return self.memory.fits(usable_bytes(self.training.cluster))

    @property
    def tokens_per_s(self) -> FloatColumn:
        """Of the whole cluster."""
        c = self.columns
        sequences = c["micro_batch_size"] * c["grad_accum_steps"] * c["dp"]
        return sequences * self.training.model.seq_len / self.time.step_s

    @property
    def model_flops_per_device(self) -> FloatColumn:
        """Model FLOP/s per device, recomputation left out."""
        c = self.columns
        return self.tokens_per_s * self.training.model.flops_per_token / (c["tp"] * c["pp"] * c["cp"] * c["dp"])


def usable_bytes(cluster: ClusterSpec) -> float:
    """What the peak of a rank must stay below."""
    return cluster.device.memory_bytes * USABLE_SHARE[cluster.device.kind]


def heavy_cdf(value: FloatColumn) -> FloatColumn:
    """The distribution function of Student's t with 3 degrees of freedom, in closed form.

    Peaks of real runs scatter with tails that are heavier than normal (docs/explanation/physics-memory.md).
    """
    scaled = np.asarray(value) / sqrt(3)
    result: FloatColumn = 0.5 + (scaled / (1 + scaled**2) + np.arctan(scaled)) / pi
    return result
