"""How fast one device does each kind of work in training: as a probe measured it (`DeviceSpec.measured`), else a share
of what its description says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from meshtune.search_spaces.cluster import UNMEASURED, DeviceSpec, MeasuredRates
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.physics.constants import DEFAULTS, Constants
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile

# What a long, well-shaped matrix product reaches of the peak where the device's description does not say.
SUSTAINED_SHARE = 0.8
# What fused attention reaches of such a product's rate where no kernel was timed: FlashAttention-2 0.70 on an A100 and
# 0.41 on an H100, cuDNN 0.66 there, FlashAttention-4 0.74 on a B200.
ATTENTION_SHARE = 0.6
# The rates of `AttentionRate` hold in these formats, and at this length.
ATTENTION_FORMATS = ("bfloat16", "float16")
ATTENTION_LENGTH = 16384
# Kernels for one architecture (`DeviceSpec.own_attention_flops`).
OWN_KERNELS = frozenset({"cudnn", "flash3", "flash4"})
# A backward pass has twice the products of a forward pass, but autograd launches it from C++.
BACKWARD_LAUNCHES = 1.5
# The share of the doubt about a constant that is left where a probe measured what it stands for: judged.
LEFT_DOUBT = 1 / 3
# The trainer's host time is reasoned, not fitted as the other codes': the doubt about it over theirs, 0.7 to 0.25.
REASONED_DOUBT = 2.8

Number = FloatColumn | float


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one training code on one device, with the constants."""

    device: DeviceSpec
    framework: FrameworkProfile
    constants: Constants

    @property
    def measured(self) -> MeasuredRates:
        """In the number format that is trained in."""
        return self.device.measured.get(self.framework.dtype, UNMEASURED)

    def reached(self, constant: str, measured: Number | None, usual: Number) -> Number:
        """The measured number, moved by the constant's distance from its default; else the constant times the usual."""
        value: Number = getattr(self.constants, constant)
        if measured is None:
            return usual * value
        moved: Number = measured * (value / getattr(DEFAULTS, constant)) ** LEFT_DOUBT
        return moved

    @property
    def products_per_s(self) -> Number:
        """FLOP/s of the layers' matrix products."""
        return self.reached("matmul_efficiency", None, self.sustained(self.product_dtype))

    def attention_per_s(self, head_dim: float, length: float) -> tuple[Number, Number]:
        """FLOP/s of fused attention, forward and backward, with heads of so many values, where a query sees half of
        `length` keys on average."""
        known, (forward, backward) = self.measured, self.kernel_per_s(head_dim, length)
        return (
            self.reached("attention_efficiency", known.attention_flops, forward),
            self.reached("attention_efficiency", known.attention_backward_flops, backward),
        )

    def kernel_per_s(self, head_dim: float, length: float) -> tuple[float, float]:
        """By the first of the code's kernels that was timed on the device, head sizes between those timed included."""
        dtype, device = self.framework.dtype, self.device
        known = {one.kernel for one in device.attention} if dtype in ATTENTION_FORMATS else set()
        kernel = next((name for name in self.framework.attention_kernels if name in known), None)
        if dtype in device.attention_flops or kernel is None:
            usual = device.attention_flops.get(dtype, ATTENTION_SHARE * self.sustained(dtype))
            if OWN_KERNELS.intersection(self.framework.attention_kernels):
                usual = device.own_attention_flops.get(dtype, usual)
            return usual, usual
        ways: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
        for one in (one for one in device.attention if one.kernel == kernel):
            shorter = (1 + one.start_tokens / ATTENTION_LENGTH) / (1 + one.start_tokens / length)
            for way, rate in zip(ways, (one.forward_flops, one.backward_flops), strict=True):
                way.append((one.head_dim, rate * shorter))
        forward, backward = (float(between(np.asarray(head_dim), way)) for way in ways)
        return forward, backward

    @property
    def bandwidth(self) -> float:
        """Bytes/s, as described."""
        assert self.device.memory_bandwidth_bytes_per_s is not None  # `training.missing` was asked
        return self.device.memory_bandwidth_bytes_per_s

    @property
    def bytes_per_s(self) -> Number:
        """Memory bandwidth that elementwise work reaches."""
        return self.reached("memory_efficiency", None, self.bandwidth)

    @property
    def loss_bytes_per_s(self) -> Number:
        return self.reached("memory_efficiency", self.measured.loss_bytes_per_s, self.bandwidth)

    def layer_bytes_per_s(self, tokens: FloatColumn) -> Number:
        """The bandwidth that a layer's elementwise work reaches in micro-batches of so many tokens."""
        own = self.measured.compiled_layer_bytes_per_s if self.framework.compiled else ()
        known = own or self.measured.layer_bytes_per_s
        measured = between(tokens, [(one.tokens, one.bytes_per_s) for one in known]) if known else None
        return self.reached("memory_efficiency", measured, self.bandwidth)

    @property
    def launch_s(self) -> Number:
        """Host time to launch a layer's forward and backward pass."""
        known = self.measured.compiled_layer_host_s if self.framework.compiled else self.measured.layer_host_s
        usual, factor = self.framework.layer_launch_s * (1 + BACKWARD_LAUNCHES), self.constants.launch_factor
        if not self.framework.probed:
            return usual * factor
        return usual * factor**REASONED_DOUBT if known is None else known * factor

    def product_per_s(self, rows: FloatColumn, inputs: Number, outputs: Number) -> FloatColumn:
        """FLOP/s of a product of (rows, inputs) by (inputs, outputs), and in a second row of its backward pass's two. A
        probe's are those of the weight whose sides are nearest, at as many rows; other sides, or more rows than were
        probed, count by `_narrow`."""
        if not self.measured.products or self.fewer_bits:
            return np.stack([self.products_per_s / self._narrow(rows, inputs, outputs)] * 2)
        nearest, best = np.full_like(rows, np.inf), np.zeros((2, *rows.shape))
        for shape in {(one.inputs, one.outputs) for one in self.measured.products}:
            known = [one for one in self.measured.products if (one.inputs, one.outputs) == shape]
            ways = ([(one.rows, one.forward_flops) for one in known], [(one.rows, one.backward_flops) for one in known])
            seen = np.clip(rows, min(one.rows for one in known), max(one.rows for one in known))
            as_narrow = self._narrow(seen, *shape) / self._narrow(rows, inputs, outputs)
            far = np.abs(np.log(inputs / shape[0])) + np.abs(np.log(outputs / shape[1]))
            best = np.where(far < nearest, np.stack([between(rows, way) for way in ways]) * as_narrow, best)
            nearest = np.minimum(far, nearest)
        return np.asarray(self.reached("matmul_efficiency", best, 0.0))

    def _narrow(self, rows: Number, inputs: Number, outputs: Number) -> Number:
        """How many times as long a product takes as a large one of as many FLOP. One of m x k by k x n moves
        (m k + k n + m n) values for m k n multiplications, 1/m + 1/n + 1/k of them: time beyond the multiplications'
        own goes with the sum over all three sides, in the two products of the backward pass too, where the sides are
        the same in other places."""
        return 1 + self.constants.narrow_rows * (1 / rows + 1 / inputs + 1 / outputs)

    @property
    def product_dtype(self) -> str:
        """Of the layers' products: the code's, where the device has a rate for it."""
        own, dtype = self.framework.product_dtype, self.framework.dtype
        return own if own in self.device.peak_flops else dtype

    @property
    def fewer_bits(self) -> bool:
        """The layers' products have another format than the head's."""
        return self.product_dtype != self.framework.dtype

    def sustained(self, dtype: str) -> float:
        return self.device.sustained_flops.get(dtype, SUSTAINED_SHARE * self.device.peak_flops[dtype])


def between(at: FloatColumn, known: Iterable[tuple[int, float]]) -> FloatColumn:
    """The rate at `at`, between the known (place, rate) in the logarithms of both, beyond them that of the last one."""
    places, rates = np.log(sorted(known)).T
    result: FloatColumn = np.exp(np.interp(np.log(at), places, rates))
    return result
