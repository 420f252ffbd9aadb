"""The rules that make a Plan legal: each has a name, a sentence of reason, and is checked on whole columns at once.

A rule reads only a Plan's own fields (and the setting: model, cluster, batch, trainer), so the same code filters a
million combinations and explains one. Rules of three kinds: arithmetic (degrees must multiply up), shapes (what is cut
must divide), and identity (of two plans that run the same, one is kept, so that no trial is spent twice).
"""

from __future__ import annotations

import numpy as np

from meshtune.search_spaces.columns import (
    CONTEXTS,
    RECOMPUTES,
    SCHEDULES,
    BoolColumn,
    Columns,
    Constraint,
    IntColumn,
    SpaceContext,
    codes,
    expert_replicas,
    expert_tp,
    zero_groups,
)
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.stages import layers_between


def _tp_divides(size: str, reason: str, able: str = "") -> Constraint:
    """The rule that tp divides one of the model's sizes, or, of a trainer that is able, the other way round."""

    def repeats(s: SpaceContext) -> bool:
        return bool(able) and getattr(s.capabilities, able)

    return Constraint(
        f"tp-{size.replace('_', '-')}",
        reason,
        lambda c, s: (
            (getattr(s.model, size) % c["tp"] == 0) | (repeats(s) & (c["tp"] % max(1, getattr(s.model, size)) == 0))
        ),
        lambda p, s: (
            f"tp({p.tp}) does not divide {size}({getattr(s.model, size)})" + ", nor the other way round" * repeats(s)
        ),
    )


def _zero_runs(c: Columns, s: SpaceContext) -> BoolColumn:
    alone = np.isin(c["zero_stage"], list(s.capabilities.zero_stages))
    with_pp = np.isin(c["zero_stage"], list(s.capabilities.zero_stages_with_pp))
    return np.where(c["pp"] > 1, with_pp, alone).astype(np.bool_)


def _zero_numbers(p: Plan, s: SpaceContext) -> str:
    able = s.capabilities.zero_stages_with_pp if p.pp > 1 else s.capabilities.zero_stages
    listed = ", ".join(map(str, sorted(able))) or "none"
    return f"zero_stage({p.zero_stage}) with pp({p.pp}): the trainer runs stages {listed} there"


def _split_of(p: Plan) -> str:
    return f"first_stage_less_layers({p.first_stage_less_layers}), last_stage_less_layers({p.last_stage_less_layers})"


def _layers_come_out(c: Columns, s: SpaceContext) -> BoolColumn:
    first, last, layers = c["first_stage_less_layers"], c["last_stage_less_layers"], s.model.layers
    whole: BoolColumn = (layers + first + last) % (c["pp"] * c["vpp"]) == 0
    empty, between = s.capabilities.empty_ends, layers_between(c, layers)
    alone = empty & (s.model.mtp_layers > 0) & (c["pp"] * c["vpp"] > 2) & (last <= 2 * between)
    fewest: IntColumn = np.maximum(0, np.where(alone, first, np.maximum(first, last)) - empty)
    return whole & (between > fewest)


def _layers_numbers(p: Plan, s: SpaceContext) -> str:
    chunks, first, last = p.pp * p.vpp, p.first_stage_less_layers, p.last_stage_less_layers
    total, sum_words = s.model.layers + first + last, f"layers({s.model.layers})"
    if first or last:
        sum_words = f"{sum_words} + {_split_of(p).replace(', ', ' + ')} = {total}"
    if total % chunks:
        return f"pp({p.pp}) * vpp({p.vpp}) = {chunks} does not divide {sum_words}"
    return f"{sum_words} in {chunks} chunks are {total // chunks} for each, which leaves one of them none"


def _fewest_layers(c: Columns, s: SpaceContext) -> IntColumn:
    """Of any chunk."""
    fewer: IntColumn = np.maximum(c["first_stage_less_layers"], c["last_stage_less_layers"])
    return layers_between(c, s.model.layers) - np.maximum(0, fewer)


def _split_runs(c: Columns, s: SpaceContext) -> BoolColumn:
    able, first, last = s.capabilities.stage_splits, c["first_stage_less_layers"], c["last_stage_less_layers"]
    runs: BoolColumn = np.full(len(first), able is None, dtype=np.bool_)
    for one, other in able or ():
        runs |= (first == one) & (last == other)
    return runs


def _rounds(c: Columns, s: SpaceContext) -> BoolColumn:
    even: BoolColumn = c["grad_accum_steps"] % np.maximum(1, c["grad_accum_steps"] // c["pp"]) == 0
    return even | ~np.isin(c["schedule"], _IN_ROUNDS)


def _ulysses(heads: str, words: str) -> Constraint:
    """The rule that each context rank gets whole heads out of those that tensor parallelism leaves, or as many as
    others a copy of one key/value head."""

    def repeats(s: SpaceContext) -> bool:
        return heads == "kv_heads" and s.capabilities.kv_repeated_in_ulysses

    return Constraint(
        f"ulysses-{heads.replace('_', '-')}",
        f"ulysses gives each context rank whole {words} heads, out of those that tensor parallelism leaves",
        lambda c, s: (
            (c["context"] != _ULYSSES)
            | (getattr(s.model, heads) % (c["tp"] * c["cp"]) == 0)
            | (repeats(s) & (c["tp"] * c["cp"] % getattr(s.model, heads) == 0))
        ),
        lambda p, s: (
            f"tp({p.tp}) * cp({p.cp}) = {p.tp * p.cp} does not divide {heads}({getattr(s.model, heads)})"
            + ", nor the other way round" * repeats(s)
        ),
    )


_INTERLEAVING = codes(SCHEDULES, frozenset(s for s in SCHEDULES if s.interleaves))
_SPLIT_BACKWARD = codes(SCHEDULES, frozenset(s for s in SCHEDULES if s.splits_backward))
_IN_ROUNDS = codes(SCHEDULES, frozenset({Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE}))


def _all_devices(c: Columns, s: SpaceContext) -> BoolColumn:
    used = c["tp"] * c["pp"] * c["cp"] * c["dp"]
    # A grid of sizes has their column; a plan by itself is of any of them.
    grid = c["nodes"] * s.cluster.devices_per_node if "nodes" in c else c.get("devices")
    return np.isin(used, s.devices) if grid is None else used == grid


# The rules that read the model's sizes: none of them holds of a model that nobody named.
_OF_TP = (f"tp-{size}" for size in ("heads", "kv-heads", "ffn", "shared-ffn", "dense-ffn", "vocab"))
_OF_OTHERS = ("pp-layers", "ep-experts", "sequence", "ring-sequence", "ulysses-heads", "ulysses-kv-heads")
OF_SHAPES = frozenset({*_OF_TP, *_OF_OTHERS, "etp-experts", "recompute-interval"})
_PLAIN_SCHEDULE = SCHEDULES.index(Schedule.ONE_F_ONE_B)
_ZBV = SCHEDULES.index(Schedule.ZBV)
_NO_RECOMPUTE, _SELECTIVE = RECOMPUTES.index(Recompute.NONE), RECOMPUTES.index(Recompute.SELECTIVE)
_ALL_GATHER, _ULYSSES, _RING = (CONTEXTS.index(kind) for kind in ContextParallel)

CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "devices",
        "every device of the cluster gets exactly one rank",
        _all_devices,
        lambda p, s: (
            f"tp({p.tp}) * pp({p.pp}) * cp({p.cp}) * dp({p.dp}) = {p.world_size}, but "
            + (
                f"the cluster has {s.cluster.devices} devices"
                if s.sizes is None
                else f"jobs have {' or '.join(map(str, s.sizes))} devices"
            )
        ),
    ),
    Constraint(
        "global-batch",
        "the global batch is fixed, so that tuning never changes what is trained",
        lambda c, s: (
            (c["micro_batch_size"] * c["grad_accum_steps"] * c["dp"] == s.global_batch_size)
            | (s.global_batch_size is None)
        ),
        lambda p, s: (
            f"micro_batch_size({p.micro_batch_size}) * grad_accum_steps({p.grad_accum_steps}) * dp({p.dp}) = "
            f"{p.global_batch_size}, but the global batch is {s.global_batch_size}"
        ),
    ),
    Constraint(
        "tp-in-node",
        "tensor parallelism communicates in every layer, so its group stays inside a node unless the spec allows more",
        lambda c, s: (s.cluster.domain % c["tp"] == 0) | s.tp_across_nodes,
        lambda p, s: f"tp({p.tp}) does not divide the {s.cluster.domain} devices of a node",
    ),
    _tp_divides("heads", "each rank computes whole attention heads"),
    _tp_divides(
        "kv_heads",
        "each rank holds whole key/value heads, or, where the trainer can, a copy of the one that its queries share",
        "kv_replication",
    ),
    Constraint(
        "tp-ffn",
        "the feed-forward width is cut evenly over the tensor ranks, that of experts over theirs",
        lambda c, s: s.model.ffn % expert_tp(c) == 0,
        lambda p, s: f"{f'etp({p.etp})' if p.etp else f'tp({p.tp})'} does not divide ffn({s.model.ffn})",
    ),
    _tp_divides("shared_ffn", "shared experts are cut evenly over the tensor ranks"),
    _tp_divides("dense_ffn", "the dense layers' width is cut evenly too"),
    Constraint(
        "tp-vocab",
        "embedding and head are cut evenly over the vocabulary, unless the trainer pads it or cuts it unevenly",
        lambda c, s: (s.model.vocab % c["tp"] == 0) | s.capabilities.uneven_vocab,
        lambda p, s: f"tp({p.tp}) does not divide vocab({s.model.vocab})",
    ),
    Constraint(
        "sequence",
        "context and sequence parallelism cut the sequence evenly",
        lambda c, s: s.model.seq_len % (c["cp"] * np.where(c["sequence_parallel"] == 1, c["tp"], 1)) == 0,
        lambda p, s: (
            (f"cp({p.cp}) * tp({p.tp}) = {p.cp * p.tp}" if p.sequence_parallel else f"cp({p.cp})")
            + f" does not divide seq_len({s.model.seq_len})"
        ),
    ),
    Constraint(
        "pp-layers",
        "every pipeline chunk holds the same number of layers, but for what the first and the last one hold fewer or "
        "more, and at least one, where the trainer needs it",
        _layers_come_out,
        _layers_numbers,
    ),
    Constraint(
        "trainer-stages",
        "the trainer must be able to give the first and the last pipeline stage other numbers of layers",
        _split_runs,
        lambda p, s: (
            f"{_split_of(p)}: the trainer runs "
            + (", ".join(f"{e} and {h}" for e, h in sorted(s.capabilities.stage_splits or ())) or "none")
        ),
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
        lambda c, s: (c["dp"] % c["ep"] == 0) | s.capabilities.expert_folding,
        lambda p, s: f"ep({p.ep}) does not divide dp({p.dp})",
    ),
    Constraint(
        "etp-ep",
        "experts take their ranks out of a pipeline stage's, in groups of one size",
        lambda c, s: c["tp"] * c["cp"] * c["dp"] % (expert_tp(c) * c["ep"]) == 0,
        lambda p, s: (
            f"etp({p.expert_tp}) * ep({p.ep}) = {p.expert_tp * p.ep} does not divide "
            f"tp({p.tp}) * cp({p.cp}) * dp({p.dp}) = {p.tp * p.cp * p.dp}"
        ),
    ),
    Constraint(
        "etp-experts",
        "a dense model has no experts to lay out",
        lambda c, s: (c["etp"] == 0) | (s.model.experts > 0),
        lambda p, s: f"etp({p.etp}), but the model has no experts",
    ),
    Constraint(
        "etp-sequence",
        "experts that are cut otherwise than tp get each token from one rank alone, so the sequence is split over tp",
        lambda c, s: (c["etp"] == 0) | (c["sequence_parallel"] == 1),
        lambda p, s: f"etp({p.etp}) with sequence_parallel(False)",
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
        "zero-group",
        "groups that ZeRO shards over are of one size, and several",
        lambda c, s: (c["zero_group"] == 0) | (c["dp"] * c["cp"] % np.maximum(1, c["zero_group"]) == 0),
        lambda p, s: f"zero_group({p.zero_group}) does not divide dp({p.dp}) * cp({p.cp}) = {p.dp * p.cp}",
    ),
    Constraint(
        "zero-group-experts",
        "experts are sharded in as many groups as all else",
        # Where the groups are no whole number, the rule above says it.
        lambda c, s: (
            (c["zero_group"] == 0)
            | (s.model.experts == 0)
            | (zero_groups(c) % 1 > 0)
            | (expert_replicas(c) % zero_groups(c) == 0)
        ),
        lambda p, s: (
            f"zero_group({p.zero_group}) makes dp({p.dp}) * cp({p.cp}) / {p.zero_group} groups, which do not divide "
            f"the replicas of experts, tp({p.tp}) * cp({p.cp}) * dp({p.dp}) / (etp({p.expert_tp}) * ep({p.ep}))"
        ),
    ),
    Constraint(
        "trainer-zero-group",
        "the trainer must be able to shard over groups of ranks at that ZeRO stage",
        lambda c, s: (c["zero_group"] == 0) | np.isin(c["zero_stage"], list(s.capabilities.zero_groups)),
        lambda p, s: (
            f"zero_group({p.zero_group}) with zero_stage({p.zero_stage}): the trainer shards over groups at stages "
            f"{', '.join(map(str, sorted(s.capabilities.zero_groups))) or 'none'}"
        ),
    ),
    Constraint(
        "trainer-cp",
        "the trainer must support that context parallelism",
        lambda c, s: (c["cp"] == 1) | np.isin(c["context"], codes(CONTEXTS, frozenset(s.capabilities.contexts))),
        lambda p, s: (
            f"cp({p.cp}) with context({p.context}): the trainer supports "
            f"{', '.join(sorted(s.capabilities.contexts)) or 'no context parallelism'}"
        ),
    ),
    Constraint(
        "trainer-ep",
        "the trainer must support expert parallelism",
        lambda c, s: (c["ep"] == 1) | s.capabilities.expert_parallel,
        lambda p, s: f"ep({p.ep}): the trainer has no expert parallelism",
    ),
    Constraint(
        "trainer-etp",
        "the trainer must be able to lay experts out by degrees of their own",
        lambda c, s: (c["etp"] == 0) | s.capabilities.expert_folding,
        lambda p, s: f"etp({p.etp}): the trainer's experts have the tensor parallel degree of all else",
    ),
    Constraint(
        "trainer-experts",
        "the trainer must support mixtures of experts to run such a model at all",
        lambda c, s: np.full_like(c["tp"], s.model.experts == 0 or s.capabilities.experts, dtype=np.bool_),
        lambda p, s: f"experts({s.model.experts}): the trainer runs dense models only",
    ),
    Constraint(
        "trainer-shapes",
        "the trainer must have every part of the model's layers; another model would be run else",
        lambda c, s: np.full_like(c["tp"], s.model.shapes <= s.capabilities.shapes, dtype=np.bool_),
        lambda p, s: (
            f"the model has {', '.join(sorted(s.model.shapes - s.capabilities.shapes))}; of these the trainer runs "
            f"{', '.join(sorted(s.capabilities.shapes)) or 'none'}"
        ),
    ),
    Constraint(
        "trainer-recompute",
        "the trainer must support that recomputation",
        lambda c, s: np.isin(c["recompute"], codes(RECOMPUTES, frozenset(s.capabilities.recompute))),
        lambda p, s: f"recompute({p.recompute}): the trainer supports {', '.join(sorted(s.capabilities.recompute))}",
    ),
    Constraint(
        "trainer-recompute-interval",
        "the trainer must be able to recompute some of the layers only",
        lambda c, s: (c["recompute_interval"] == 1) | s.capabilities.recompute_intervals,
        lambda p, s: f"recompute_interval({p.recompute_interval}): the trainer recomputes every layer or none",
    ),
    Constraint(
        "trainer-sequence-parallel",
        "the trainer must be able to run tensor parallelism without sequence parallelism",
        lambda c, s: (c["sequence_parallel"] == 1) | s.capabilities.choice_of_sequence_parallel,
        lambda p, s: "sequence_parallel(False): the trainer always splits the sequence over tp",
    ),
    Constraint(
        "trainer-schedule",
        "the trainer must support that pipeline schedule",
        lambda c, s: (c["pp"] == 1) | np.isin(c["schedule"], codes(SCHEDULES, frozenset(s.capabilities.schedules))),
        lambda p, s: f"schedule({p.schedule}): the trainer supports {', '.join(sorted(s.capabilities.schedules))}",
    ),
    Constraint(
        "vpp-schedule",
        "several model chunks per pipeline rank need an interleaving schedule, and such a schedule needs several",
        lambda c, s: (c["vpp"] > 1) == np.isin(c["schedule"], _INTERLEAVING),
        lambda p, s: f"vpp({p.vpp}) does not go with schedule({p.schedule})",
    ),
    Constraint(
        "zbv-vpp",
        "zbv folds the pipeline once: its ranks hold two chunks each (Qi et al. 2023, section 6)",
        lambda c, s: (c["schedule"] != _ZBV) | (c["vpp"] == 2),
        lambda p, s: f"vpp({p.vpp}) with schedule(zbv), which needs vpp(2)",
    ),
    Constraint(
        "interleaved-rounds",
        "interleaved schedules run rounds of at least pp micro-batches, all of one size (torch refuses other numbers)",
        _rounds,
        lambda p, s: (
            f"grad_accum_steps({p.grad_accum_steps}) is no multiple of its {max(1, p.grad_accum_steps // p.pp)} "
            f"rounds of at least pp({p.pp})"
        ),
    ),
    Constraint(
        "split-backward-zero3",
        "with weights resharded after each pass, torch's split backward passes train wrongly without an error",
        lambda c, s: ~np.isin(c["schedule"], _SPLIT_BACKWARD) | (c["zero_stage"] < 3),
        lambda p, s: f"zero_stage({p.zero_stage}) with schedule({p.schedule})",
    ),
    Constraint(
        "split-backward-selective",
        "torch's selective recomputation allows one backward pass, and these schedules run it in two (torch refuses)",
        lambda c, s: ~np.isin(c["schedule"], _SPLIT_BACKWARD) | (c["recompute"] != _SELECTIVE),
        lambda p, s: f"recompute({p.recompute}) with schedule({p.schedule})",
    ),
    _ulysses("heads", "attention"),
    _ulysses("kv_heads", "key/value"),
    Constraint(
        "ring-sequence",
        "in a ring each rank holds one slice from the front and one from the back, so that causal work is even",
        lambda c, s: (c["context"] != _RING) | (s.model.seq_len % (2 * c["cp"]) == 0),
        lambda p, s: f"2 * cp({p.cp}) does not divide seq_len({s.model.seq_len})",
    ),
    Constraint(
        "recompute-interval",
        "every chunk of the pipeline holds a layer that is recomputed, else the ranks would differ",
        lambda c, s: c["recompute_interval"] <= np.maximum(1, _fewest_layers(c, s)),
        lambda p, s: (
            f"recompute_interval({p.recompute_interval}) is above the layers of a chunk, "
            f"layers({s.model.layers}) / (pp({p.pp}) * vpp({p.vpp}))"
            + (f", with {_split_of(p)}" if p.first_stage_less_layers or p.last_stage_less_layers else "")
        ),
    ),
    Constraint(
        "schedule-needs-pp",
        "without a pipeline all schedules run the same; only 1f1b is kept",
        lambda c, s: (c["pp"] > 1) | (c["schedule"] == _PLAIN_SCHEDULE),
        lambda p, s: f"schedule({p.schedule}) with pp(1) is the same setting as 1f1b",
    ),
    Constraint(
        "split-needs-pp",
        "without a pipeline its first and its last chunk are the whole model; only 0 and 0 are kept",
        lambda c, s: (c["pp"] > 1) | ((c["first_stage_less_layers"] == 0) & (c["last_stage_less_layers"] == 0)),
        lambda p, s: f"{_split_of(p)} with pp(1) is the same setting as 0 and 0",
    ),
    Constraint(
        "two-chunks",
        "of two chunks only the difference counts, so one of both numbers is 0",
        lambda c, s: (
            (c["pp"] * c["vpp"] != 2) | (np.minimum(c["first_stage_less_layers"], c["last_stage_less_layers"]) == 0)
        ),
        lambda p, s: f"{_split_of(p)} with pp(2) is the same setting as both less the smaller one",
    ),
    Constraint(
        "zero-needs-dp",
        "with one data- and context-parallel rank there is nothing to shard over; only ZeRO stage 0 is kept, and 1 "
        "where several ranks hold the same experts",
        lambda c, s: (c["dp"] * c["cp"] > 1) | (c["zero_stage"] <= (expert_replicas(c) > 1)),
        lambda p, s: f"zero_stage({p.zero_stage}) with dp({p.dp}) * cp({p.cp}) = 1 is the same setting as stage 0",
    ),
    Constraint(
        "group-needs-several",
        "a group of all ranks is ZeRO's usual one, and a group of one shards nothing; only 0, or stage 0, is kept",
        lambda c, s: (c["zero_group"] == 0) | ((c["zero_group"] > 1) & (c["zero_group"] < c["dp"] * c["cp"])),
        lambda p, s: (
            f"zero_group({p.zero_group}) with dp({p.dp}) * cp({p.cp}) = {p.dp * p.cp} is the same setting as "
            + ("zero_stage(0)" if p.zero_group == 1 else "zero_group(0)")
        ),
    ),
    Constraint(
        "etp-differs",
        "experts that are cut as all else is are the usual layout; only 0 is kept",
        lambda c, s: c["etp"] != c["tp"],
        lambda p, s: f"etp({p.etp}) with tp({p.tp}) is the same setting as 0",
    ),
    Constraint(
        "sequence-parallel-needs-tp",
        "without tensor parallelism the sequence is not split either way; only sequence_parallel true is kept",
        lambda c, s: (c["tp"] > 1) | (c["sequence_parallel"] == 1),
        lambda p, s: "sequence_parallel(False) with tp(1) is the same setting as true",
    ),
    Constraint(
        "interval-needs-recompute",
        "without recomputation its interval means nothing; only 1 is kept",
        lambda c, s: (c["recompute"] != _NO_RECOMPUTE) | (c["recompute_interval"] == 1),
        lambda p, s: f"recompute_interval({p.recompute_interval}) with recompute(none) is the same setting as 1",
    ),
    Constraint(
        "context-needs-cp",
        "without context parallelism all kinds of it are the same; only all_gather is kept",
        lambda c, s: (c["cp"] > 1) | (c["context"] == _ALL_GATHER),
        lambda p, s: f"context({p.context}) with cp(1) is the same setting as all_gather",
    ),
)
