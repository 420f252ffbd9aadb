"""What the commands do. A module is loaded when it is first used: `usage` declares the commands, and each loads only
what it works with (docs/decisions/structure.md#d0044)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshtune.tuner.cli.commands import (  # noqa: F401
        calibrate,
        campaign,
        cluster,
        confirm,
        dashboard,
        doctor,
        examples,
        knobs,
        predictions,
        remote,
        results,
        sbatch,
        service,
        sites,
        study,
    )


def __getattr__(name: str) -> ModuleType:
    if find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
