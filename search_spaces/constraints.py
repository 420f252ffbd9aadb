"""The rules that make a Plan legal: each has a name, a sentence of reason, and is checked on whole columns at once.

A rule reads only a Plan's own fields (and the setting: model, cluster, batch, trainer), so the same code filters a
million combinations and explains one. Rules of three kinds: arithmetic (degrees must multiply up), shapes (what is cut
must divide), and identity (of two plans that run the same, one is kept, so that no trial is spent twice).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from search_spaces.checks import Checks
from search_spaces.cluster import ClusterSpec
from search_spaces.model import ModelSpec
from search_spaces.plan import Plan, Recompute, Schedule

IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
# One column per field of Plan, all of one length. Enumerations stand as the index of their member.
Columns = Mapping[str, IntColumn]

RECOMPUTES: tuple[Recompute, ...] = tuple(Recompute)
SCHEDULES: tuple[Schedule, ...] = tuple(Schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the training code of a workload can run. The default is plain data, tensor and pipeline parallelism."""

    schedules: frozenset[Schedule] = frozenset({Schedule.ONE_F_ONE_B})
    recompute: frozenset[Recompute] = frozenset({Recompute.NONE})
    zero_stages: frozenset[int] = frozenset({0, 1, 2, 3})
    zero_stages_with_pp: frozenset[int] = frozenset({0, 1})
    context_parallel: bool = False
    expert_parallel: bool = False
    kv_replication: bool = False
    experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a Plan is judged against. global_batch_size None: any."""

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
    holds: Callable[[Columns, Setting], BoolColumn]
    numbers: Callable[[Plan, Setting], str]


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that one Plan breaks."""

    constraint: str
    message: str
    reason: str

    def __str__(self) -> str:
        return f"{self.message} ({self.constraint}: {self.reason})"


def _divides(name: str, field_name: str, reason: str, size: Callable[[ModelSpec], int], label: str) -> Constraint:
    """The rule that a parallel degree divides one of the model's sizes."""
    return Constraint(
        name,
        reason,
        lambda c, s: size(s.model) % c[field_name] == 0,
        lambda p, s: f"{field_name}({getattr(p, field_name)}) does not divide {label}({size(s.model)})",
    )


def _kv_heads(c: Columns, s: Setting) -> BoolColumn:
    kv, tp = s.model.kv_heads, c["tp"]
    whole: BoolColumn = kv % tp == 0
    return whole | (tp % kv == 0) if s.capabilities.kv_replication else whole


def _kv_heads_numbers(p: Plan, s: Setting) -> str:
    text = f"tp({p.tp}) does not divide kv_heads({s.model.kv_heads})"
    return text + (", nor the other way round" if s.capabilities.kv_replication else "")


def _inside_node(c: Columns, s: Setting) -> BoolColumn:
    if s.tp_across_nodes:
        return np.ones_like(c["tp"], dtype=np.bool_)
    inside: BoolColumn = s.cluster.devices_per_node % c["tp"] == 0
    return inside


def _batch(c: Columns, s: Setting) -> BoolColumn:
    if s.global_batch_size is None:
        return np.ones_like(c["tp"], dtype=np.bool_)
    fits: BoolColumn = c["micro_batch_size"] * c["grad_accum_steps"] * c["dp"] == s.global_batch_size
    return fits


def _zero_runs(c: Columns, s: Setting) -> BoolColumn:
    alone = np.isin(c["zero_stage"], list(s.capabilities.zero_stages))
    with_pp = np.isin(c["zero_stage"], list(s.capabilities.zero_stages_with_pp))
    return np.where(c["pp"] > 1, with_pp, alone).astype(np.bool_)


def _zero_numbers(p: Plan, s: Setting) -> str:
    able = s.capabilities.zero_stages_with_pp if p.pp > 1 else s.capabilities.zero_stages
    return f"zero_stage({p.zero_stage}) with pp({p.pp}): the trainer runs stages {_listed(able)} there"


def _listed(values: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(values))) or "none"


def _codes(members: tuple[object, ...], able: frozenset[object]) -> list[int]:
    return [index for index, member in enumerate(members) if member in able]


_INTERLEAVING = _codes(SCHEDULES, frozenset(s for s in SCHEDULES if s.interleaves))
_PLAIN_SCHEDULE = SCHEDULES.index(Schedule.ONE_F_ONE_B)

CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "devices",
        "every device of the cluster gets exactly one rank",
        lambda c, s: c["tp"] * c["pp"] * c["cp"] * c["dp"] == s.cluster.devices,
        lambda p, s: (
            f"tp({p.tp}) * pp({p.pp}) * cp({p.cp}) * dp({p.dp}) = {p.world_size}, but the cluster has "
            f"{s.cluster.devices} devices"
        ),
    ),
    Constraint(
        "global-batch",
        "the global batch is fixed, so that tuning never changes what is trained",
        _batch,
        lambda p, s: (
            f"micro_batch_size({p.micro_batch_size}) * grad_accum_steps({p.grad_accum_steps}) * dp({p.dp}) = "
            f"{p.global_batch_size}, but the global batch is {s.global_batch_size}"
        ),
    ),
    Constraint(
        "tp-in-node",
        "tensor parallelism communicates in every layer, so its group stays inside a node unless the spec allows more",
        _inside_node,
        lambda p, s: f"tp({p.tp}) does not divide the {s.cluster.devices_per_node} devices of a node",
    ),
    _divides("tp-heads", "tp", "each rank computes whole attention heads", lambda m: m.heads, "heads"),
    Constraint(
        "tp-kv-heads",
        "each rank holds whole key/value heads, or, where the trainer can, a copy of the one that its queries share",
        _kv_heads,
        _kv_heads_numbers,
    ),
    _divides("tp-ffn", "tp", "the feed-forward width is cut evenly over the tensor ranks", lambda m: m.ffn, "ffn"),
    _divides("tp-vocab", "tp", "embedding and head are cut evenly over the vocabulary", lambda m: m.vocab, "vocab"),
    Constraint(
        "sequence",
        "context and sequence parallelism cut the sequence evenly",
        lambda c, s: s.model.seq_len % (c["cp"] * c["tp"]) == 0,
        lambda p, s: f"cp({p.cp}) * tp({p.tp}) = {p.cp * p.tp} does not divide seq_len({s.model.seq_len})",
    ),
    Constraint(
        "pp-layers",
        "every pipeline chunk holds the same number of layers",
        lambda c, s: s.model.layers % (c["pp"] * c["vpp"]) == 0,
        lambda p, s: f"pp({p.pp}) * vpp({p.vpp}) = {p.pp * p.vpp} does not divide layers({s.model.layers})",
    ),
    Constraint(
        "pp-micro-batches",
        "a pipeline needs at least one micro-batch per stage (torch's 1F1B refuses fewer)",
        lambda c, s: c["grad_accum_steps"] >= c["pp"],
        lambda p, s: f"grad_accum_steps({p.grad_accum_steps}) micro-batches are fewer than pp({p.pp}) stages",
    ),
    Constraint(
        "ep-dp",
        "expert parallel ranks are taken out of the data-parallel ones",
        lambda c, s: c["dp"] % c["ep"] == 0,
        lambda p, s: f"ep({p.ep}) does not divide dp({p.dp})",
    ),
    Constraint(
        "ep-experts",
        "each expert parallel rank holds the same number of experts; a dense model has none to spread",
        lambda c, s: (s.model.experts % c["ep"] == 0) & ((c["ep"] == 1) | (s.model.experts > 0)),
        lambda p, s: (
            f"ep({p.ep}) does not divide experts({s.model.experts})"
            if s.model.experts
            else f"ep({p.ep}), but the model has no experts"
        ),
    ),
    Constraint(
        "zero",
        "the trainer must be able to run that ZeRO stage, with pipelining where there is some",
        _zero_runs,
        _zero_numbers,
    ),
    Constraint(
        "trainer-cp",
        "the trainer must support context parallelism",
        lambda c, s: (c["cp"] == 1) | s.capabilities.context_parallel,
        lambda p, s: f"cp({p.cp}): the trainer has no context parallelism",
    ),
    Constraint(
        "trainer-ep",
        "the trainer must support expert parallelism",
        lambda c, s: (c["ep"] == 1) | s.capabilities.expert_parallel,
        lambda p, s: f"ep({p.ep}): the trainer has no expert parallelism",
    ),
    Constraint(
        "trainer-experts",
        "the trainer must support mixtures of experts to run such a model at all",
        lambda c, s: np.full_like(c["tp"], s.model.experts == 0 or s.capabilities.experts, dtype=np.bool_),
        lambda p, s: f"experts({s.model.experts}): the trainer runs dense models only",
    ),
    Constraint(
        "trainer-recompute",
        "the trainer must support that recomputation",
        lambda c, s: np.isin(c["recompute"], _codes(RECOMPUTES, frozenset(s.capabilities.recompute))),
        lambda p, s: f"recompute({p.recompute}): the trainer supports {', '.join(sorted(s.capabilities.recompute))}",
    ),
    Constraint(
        "trainer-schedule",
        "the trainer must support that pipeline schedule",
        lambda c, s: (c["pp"] == 1) | np.isin(c["schedule"], _codes(SCHEDULES, frozenset(s.capabilities.schedules))),
        lambda p, s: f"schedule({p.schedule}): the trainer supports {', '.join(sorted(s.capabilities.schedules))}",
    ),
    Constraint(
        "vpp-schedule",
        "several model chunks per pipeline rank need an interleaving schedule, and such a schedule needs several",
        lambda c, s: (c["vpp"] > 1) == np.isin(c["schedule"], _INTERLEAVING),
        lambda p, s: f"vpp({p.vpp}) does not go with schedule({p.schedule})",
    ),
    Constraint(
        "schedule-needs-pp",
        "without a pipeline all schedules run the same; only 1f1b is kept",
        lambda c, s: (c["pp"] > 1) | (c["schedule"] == _PLAIN_SCHEDULE),
        lambda p, s: f"schedule({p.schedule}) with pp(1) is the same setting as 1f1b",
    ),
    Constraint(
        "zero-needs-dp",
        "with one data- and context-parallel rank there is nothing to shard over; only ZeRO stage 0 is kept",
        lambda c, s: (c["dp"] * c["cp"] > 1) | (c["zero_stage"] == 0),
        lambda p, s: f"zero_stage({p.zero_stage}) with dp({p.dp}) * cp({p.cp}) = 1 is the same setting as stage 0",
    ),
)
