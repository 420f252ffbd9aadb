"""Plans as columns, one array per field of Plan: rules and physics run over a whole space at once.

And the context of a space, with the types of the rules about its plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.checks import Checked, Whole
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.model import ModelSpec
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
    return MEMBERS[name].index(value) if name in MEMBERS else int(value)


def value_of(name: str, coded: int) -> Any:
    return MEMBERS[name][coded] if name in MEMBERS else _KINDS[name](coded)


def columns_of(plans: Sequence[Plan]) -> Columns:
    return {name: np.array([code(name, getattr(plan, name)) for plan in plans], dtype=np.int64) for name in PLAN_FIELDS}


def rows(columns: Columns, index: npt.NDArray[Any] | slice) -> Columns:
    """Some of the rows: by positions, a mask or a slice."""
    return {name: column[index] for name, column in columns.items()}


def sharding_ranks(columns: Mapping[str, Any]) -> Any:
    """Over how many ranks ZeRO shards what all of dp * cp hold alike. Columns of whole numbers or of floats."""
    return np.where(columns["zero_group"] > 0, columns["zero_group"], columns["dp"] * columns["cp"])


def expert_tp(columns: Mapping[str, Any]) -> Any:
    """The tensor parallel degree of the experts."""
    return np.where(columns["etp"] > 0, columns["etp"], columns["tp"])


def expert_replicas(columns: Mapping[str, Any]) -> Any:
    """How many ranks hold the same experts: those of tp * cp * dp that etp and ep leave."""
    return columns["tp"] * columns["cp"] * columns["dp"] / (expert_tp(columns) * columns["ep"])


def zero_groups(columns: Mapping[str, Any]) -> Any:
    """How many groups ZeRO shards over, of dense weights and of experts; each of them holds what all others hold."""
    return columns["dp"] * columns["cp"] / sharding_ranks(columns)


# Axes of which 0 stands for another one's degree, by how many times smaller they are than it.
RATIOS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "zero_group": zero_groups,
    "etp": lambda columns: columns["tp"] / expert_tp(columns),
}
# Of a training code that gives every pipeline stage as many layers: see `search_spaces.stages`.
EVEN_ALONE = frozenset({(0, 0)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities of a workload's training code; by default plain data, tensor and pipeline parallelism.

    recompute_of_script: which of `recompute` the user's script takes is for the spec's space to say. contexts: the
    kinds of context parallelism, none when empty. choice_of_sequence_parallel: it can be turned off.
    zero_groups: the ZeRO stages that it shards over groups of ranks. expert_folding: experts have degrees of their own.
    kv_replication: key/value heads are repeated where tp is more; kv_repeated_in_ulysses: where tp * cp is.
    stage_splits: by how many layers the first and the last chunk of its pipeline may hold fewer; None: any. empty_ends:
    these two may hold no layer, but the embedding, or layers for further tokens and the loss; then such layers may
    have the last chunk but one for themselves.
    uneven_vocab: a vocabulary that tp does not divide is padded or cut unevenly. shapes: what models may have beyond
    plain layers and mixtures of experts.
    rules: what it demands of a plan beyond all these; they stand beside `search_spaces.constraints`.
    """

    schedules: frozenset[Schedule] = frozenset({Schedule.ONE_F_ONE_B})
    recompute: frozenset[Recompute] = frozenset({Recompute.NONE})
    recompute_of_script: bool = False
    zero_stages: frozenset[int] = frozenset({0, 1, 2, 3})
    zero_stages_with_pp: frozenset[int] = frozenset({0, 1})
    zero_groups: frozenset[int] = frozenset()
    contexts: frozenset[ContextParallel] = frozenset()
    recompute_intervals: bool = False
    choice_of_sequence_parallel: bool = False
    expert_parallel: bool = False
    expert_folding: bool = False
    kv_replication: bool = False
    kv_repeated_in_ulysses: bool = False
    experts: bool = False
    stage_splits: frozenset[tuple[int, int]] | None = EVEN_ALONE
    empty_ends: bool = False
    uneven_vocab: bool = False
    shapes: frozenset[Shape] = frozenset()
    rules: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceContext(Checked):
    """The context of a space: a Plan is legal for it or not. global_batch_size None: any."""

    model: ModelSpec
    cluster: ClusterSpec
    global_batch_size: Whole | None
    capabilities: Capabilities = field(default_factory=Capabilities)
    tp_across_nodes: bool = False
    # The numbers of devices that plans may take, where a knob sizes the job; None: all of the cluster's.
    sizes: tuple[int, ...] | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        """The numbers of devices that plans may take."""
        return self.sizes or (self.cluster.devices,)


@dataclass(frozen=True, slots=True)
class Constraint:
    """One rule. holds: on columns, True where kept. numbers: the broken rule on one Plan, with its numbers."""

    name: str
    reason: str
    holds: Callable[[Columns, SpaceContext], BoolColumn]
    numbers: Callable[[Plan, SpaceContext], str]


@dataclass(frozen=True, slots=True)
class Violation:
    constraint: str
    message: str
    reason: str

    def __str__(self) -> str:
        return f"{self.message} ({self.constraint}: {self.reason})"


def codes(members: tuple[object, ...], able: frozenset[object]) -> list[int]:
    return [index for index, member in enumerate(members) if member in able]
