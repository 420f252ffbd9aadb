"""A quantity is a value with the ends of its interval, whether it was measured or predicted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured or predicted quantity with the ends of its interval, low <= value <= high."""

    value: float
    low: float
    high: float

    def document(self) -> dict[str, float]:
        """Plain JSON values."""
        return {"value": self.value, "low": self.low, "high": self.high}
