"""Whether two plans train the same: their first losses, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

# Two trainings are the same when their first losses differ by at most this, by number format. float32 layouts of the
# built-in trainer agree to 1e-6 (benchmarks/log.md); bfloat16 rounds at 2**-8 per operation.
LOSS_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}


def loss_tolerance(dtype: str) -> float:
    """The coarsest for a format without one of its own: a false alarm would hide a good setting."""
    return LOSS_TOLERANCES.get(dtype, max(LOSS_TOLERANCES.values()))


@dataclass(frozen=True, slots=True)
class LossCheck:
    """The first losses of two trainings, compared. equal: None where there are none. step: the first loss (from 0) that
    differs by more than the tolerance; of equal trainings the one that differs the most."""

    equal: bool | None
    step: int | None = None
    difference: float | None = None

    def __str__(self) -> str:
        if self.equal is None:
            return "no losses to compare"
        words = "trains the same" if self.equal else "does not train the same"
        return f"{words}: the losses of step {self.step} differ by {self.difference:.2g}"


def check_losses(first: Sequence[float], second: Sequence[float], tolerance: float) -> LossCheck:
    """Compare step by step, as far as both go. A loss that is not finite equals nothing, not even another.

    The global batch is fixed and the data are the same, so the first losses of two plans agree up to rounding: later
    ones contain the earlier updates, so a wrong gradient, sum or shard shows there.
    """
    pairs = zip(first, second, strict=False)
    differences = [abs(a - b) if isfinite(a) and isfinite(b) else inf for a, b in pairs]
    if not differences:
        return LossCheck(None)
    above = [step for step, difference in enumerate(differences) if difference > tolerance]
    step = above[0] if above else differences.index(max(differences))
    return LossCheck(not above, step, differences[step])
