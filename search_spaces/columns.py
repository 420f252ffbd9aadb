"""Plans as columns: one array per field of Plan, so that rules and physics run over a whole space at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.plan import AXES, PLAN_FIELDS, ContextParallel, Plan, Recompute, Schedule

IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
FloatColumn = npt.NDArray[np.float64]
# One column per field of Plan, all of one length. Enumerations stand as the index of their member.
Columns = Mapping[str, IntColumn]

RECOMPUTES: tuple[Recompute, ...] = tuple(Recompute)
SCHEDULES: tuple[Schedule, ...] = tuple(Schedule)
CONTEXTS: tuple[ContextParallel, ...] = tuple(ContextParallel)
# The axes whose values stand in columns as the index of their member.
MEMBERS: Mapping[str, tuple[StrEnum, ...]] = {axis.name: axis.members for axis in AXES if axis.members}
_KINDS = {axis.name: axis.kind for axis in AXES}


def code(name: str, value: Any) -> int:
    """The number for this value in the column `name`."""
    return MEMBERS[name].index(value) if name in MEMBERS else int(value)


def value_of(name: str, coded: int) -> Any:
    """The inverse of `code`."""
    return MEMBERS[name][coded] if name in MEMBERS else _KINDS[name](coded)


def columns_of(plans: Sequence[Plan]) -> Columns:
    """The plans as columns, in their order."""
    return {name: np.array([code(name, getattr(plan, name)) for plan in plans], dtype=np.int64) for name in PLAN_FIELDS}


def rows(columns: Columns, index: npt.NDArray[Any] | slice) -> Columns:
    """Some of the rows: by positions, a mask or a slice."""
    return {name: column[index] for name, column in columns.items()}
