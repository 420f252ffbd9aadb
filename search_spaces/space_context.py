"""The context in which a Plan is legal or not, and the types of rules about Plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from meshtune.search_spaces.checks import Checks
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import BoolColumn, Columns
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities of a workload's training code; by default plain data, tensor and pipeline parallelism.

    contexts: the kinds of context parallelism, none when empty. choice_of_sequence_parallel: it can be turned off.
    rules: what it demands of a plan beyond all these; they stand beside `search_spaces.constraints`.
    """

    schedules: frozenset[Schedule] = frozenset({Schedule.ONE_F_ONE_B})
    recompute: frozenset[Recompute] = frozenset({Recompute.NONE})
    zero_stages: frozenset[int] = frozenset({0, 1, 2, 3})
    zero_stages_with_pp: frozenset[int] = frozenset({0, 1})
    contexts: frozenset[ContextParallel] = frozenset()
    recompute_intervals: bool = False
    choice_of_sequence_parallel: bool = False
    expert_parallel: bool = False
    kv_replication: bool = False
    experts: bool = False
    rules: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceContext:
    """The context of a space: a Plan is legal for it or not. global_batch_size None: any."""

    model: ModelSpec
    cluster: ClusterSpec
    global_batch_size: int | None
    capabilities: Capabilities = field(default_factory=Capabilities)
    tp_across_nodes: bool = False

    def __post_init__(self) -> None:
        checks = Checks()
        if self.global_batch_size is not None:
            checks.whole(1, global_batch_size=self.global_batch_size)
        checks.done()


@dataclass(frozen=True, slots=True)
class Constraint:
    """One rule. holds: on columns, True where kept. numbers: the broken rule on one Plan, with its numbers."""

    name: str
    reason: str
    holds: Callable[[Columns, SpaceContext], BoolColumn]
    numbers: Callable[[Plan, SpaceContext], str]


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that one Plan breaks."""

    constraint: str
    message: str
    reason: str

    def __str__(self) -> str:
        return f"{self.message} ({self.constraint}: {self.reason})"


def codes(members: tuple[object, ...], able: frozenset[object]) -> list[int]:
    """The columns' values for those of `members` that are `able`."""
    return [index for index, member in enumerate(members) if member in able]
