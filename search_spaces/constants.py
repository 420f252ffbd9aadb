"""The constants of the physics: what a data sheet does not say. Each has a default, and how far it may be from it.

All are positive, and calibration moves their logarithms: a prior is a log-normal with the default as its median. The
defaults are round numbers of the literature and of `docs/physics.md`; they hold for no cluster in particular.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from search_spaces.checks import Checks


def _constant(default: float, log_sd: float) -> Any:
    return field(default=default, metadata={"log_sd": log_sd})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """matmul_efficiency: of the peak, reached by large matrix products.

    PLACEHOLDER
    """

    matmul_efficiency: float = _constant(0.65, 0.3)
    memory_offset_bytes: float = _constant(2e9, 0.7)
    activation_factor: float = _constant(1.0, 0.2)

    def __post_init__(self) -> None:
        checks = Checks()
        for name, value in asdict(self).items():
            checks.require(value > 0, name, f"must be positive, not {value}")
        checks.done()


CONSTANTS: tuple[str, ...] = tuple(field.name for field in fields(Constants))
PRIOR_LOG_SD: Mapping[str, float] = {field.name: field.metadata["log_sd"] for field in fields(Constants)}
DEFAULTS = Constants()
