"""What no row of OpenRLHF's table can say: the release."""

from __future__ import annotations

from collections.abc import Mapping

from meshtune.runners.programs.reading import Reading


def kind(reading: Reading) -> str:
    """Of 0.10 and later the flags have dots."""
    return "dotted" if any(isinstance(value, Mapping) for value in reading.given.values()) else "flat"
