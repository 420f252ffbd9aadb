"""Quantities with intervals, and numbers with their units as text: seconds, moments, bytes, shares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def seconds(value: float) -> str:
    if value < 1:
        return f"{1000 * value:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(at: float) -> str:
    """at: seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def gibibytes(value: int) -> str:
    if value < 0:
        return f"-{gibibytes(-value)}"
    if value >= 2**30:
        return f"{value / 2**30:.2f} GiB"
    return f"{value / 2**20:.0f} MiB" if value >= 2**20 else f"{value / 2**10:.0f} KiB"


def device_time(value: float) -> str:
    """Seconds of devices, in the unit that fits."""
    unit, size = next((one for one in (("hour", 3600), ("minute", 60)) if value >= one[1]), ("second", 1))
    return f"{number(value / size)} device-{unit}{'s' * (value != size)}"


def measured_word(simulated: bool) -> str:
    """What became of plans that ran to their end."""
    return "simulated" if simulated else "measured"


def percent(share: float) -> str:
    """With a decimal where it tells something, and no digits of next to nothing."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.1 else f"{100 * share:.1f} %"


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

    def as_ratio(self) -> Estimate:
        """A gain plus 1."""
        return Estimate(self.value + 1, self.low + 1, self.high + 1)

    def percent_text(self, sign: str = "", *, note: str = "") -> str:
        """A share as text, with its interval where that is more than rounding. sign: "+" to show the sign of positive
        numbers. note: what else there is to say."""
        value, low, high = (f"{100 * one:{sign}.1f}" for one in (self.value, self.low, self.high))
        said = "; ".join([*([] if low == high else [f"{low} to {high} %"]), *filter(None, [note])])
        return f"{value} %" + (f" ({said})" if said else "")


def times_text(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


def interval_s(value: Estimate) -> str:
    return interval_text(seconds(value.value), seconds(value.low), seconds(value.high))


def interval_text(value: str, low: str, high: str) -> str:
    """The unit stands once where all three share it."""
    words = [text.split(" ") for text in (value, low, high)]
    if all(len(pair) == 2 and pair[1] == words[0][1] for pair in words):
        low, high = words[1][0], words[2][0]
    return f"{value} ({low} - {high})"


ONE = Estimate(1.0, 1.0, 1.0)
