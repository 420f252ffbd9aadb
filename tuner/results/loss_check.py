"""Two settings train the same when their first losses agree.

The global batch is fixed and the data are the same, so the first losses of two plans agree up to rounding: later ones
contain the earlier updates, so a wrong gradient, sum or shard shows there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

# float32 layouts of the built-in trainer agree to 1e-6 (docs/log.md); bfloat16 rounds at 2**-8 per operation.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}


@dataclass(frozen=True, slots=True)
class Comparison:
    """equal None: there is nothing to compare. step: the first loss (from 0) that differs by more than the tolerance,
    with its difference; of equal trainings the step that differs the most."""

    equal: bool | None
    step: int | None = None
    difference: float | None = None

    def __str__(self) -> str:
        if self.equal is None:
            return "no losses to compare"
        words = "trains the same" if self.equal else "does not train the same"
        return f"{words}: the losses of step {self.step} differ by {self.difference:.2g}"


def same_training(
    first_losses_a: Sequence[float], first_losses_b: Sequence[float], tolerance: float = TOLERANCES["float32"]
) -> Comparison:
    """Compare step by step, as far as both go. A loss that is no finite number equals nothing, not even another."""
    pairs = zip(first_losses_a, first_losses_b, strict=False)
    differences = [abs(a - b) if isfinite(a) and isfinite(b) else float("inf") for a, b in pairs]
    if not differences:
        return Comparison(None)
    for step, difference in enumerate(differences):
        if difference > tolerance:
            return Comparison(False, step, difference)
    largest = max(range(len(differences)), key=lambda step: differences[step])
    return Comparison(True, largest, differences[largest])
