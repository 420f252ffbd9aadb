"""A quantity with the ends of its interval, whether it was measured or predicted, and the arithmetic of such."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured or predicted quantity with the ends of its interval, low <= value <= high.

    `runners.measuring.Interval` is something else: two bare ends, with the coverage that they reach.
    """

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, factor: float) -> Estimate:
        """A positive quantity that may be off by a factor, either way."""
        return cls(value, value / factor, value * factor)

    def times(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def over(self, other: Estimate) -> Estimate:
        """The ratio of two positive quantities, with the widest ends that theirs allow."""
        return Estimate(self.value / other.value, self.low / other.high, self.high / other.low)

    def as_gain(self) -> Estimate:
        """A ratio of speeds minus 1."""
        return Estimate(self.value - 1, self.low - 1, self.high - 1)

    def percent_text(self, sign: str = "") -> str:
        """A share as text. sign: "+" to show the sign of positive numbers."""
        value, low, high = (f"{100 * one:{sign}.1f}" for one in (self.value, self.low, self.high))
        return f"{value} % ({low} to {high} %)"


ONE = Estimate(1.0, 1.0, 1.0)
