"""Numbers with their units as people read them: seconds, bytes, shares."""

from __future__ import annotations


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


def gibibytes(value: int) -> str:
    if value < 0:
        return f"-{gibibytes(-value)}"
    if value >= 2**30:
        return f"{value / 2**30:.2f} GiB"
    return f"{value / 2**20:.0f} MiB" if value >= 2**20 else f"{value / 2**10:.0f} KiB"


def percent(share: float) -> str:
    """With a decimal where it tells something."""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.1 else f"{100 * share:.1f} %"
