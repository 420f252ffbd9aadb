"""Pipeline stages: the layers of each chunk, and the uneven splits that a space offers where its bounds name none.

A pipeline has pp * vpp chunks of b = (layers + first_stage_less_layers + last_stage_less_layers) / (pp * vpp) layers;
the first chunk holds first_stage_less_layers fewer, for the embedding, and the last one last_stage_less_layers fewer,
for the head; more where the number is negative, such as light layers without experts. Both names are torchtitan's
(torchtitan/config/job_config.py at v0.2.2). Where the last chunk would hold fewer than none, the loss is alone in it
and the one before it holds the rest, with the layers for further tokens (Megatron's layouts that end with `m|L`). A
remainder spread over the stages, the other usual way, has the same slowest stage and no slack where the head is: it is
not offered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from meshtune.search_spaces.columns import SCHEDULES, Columns, FloatColumn, IntColumn
from meshtune.search_spaces.model import ModelSpec, layer_kinds, layer_traits
from meshtune.search_spaces.plan import Plan, Schedule

# Layers that the first and the last chunk hold fewer than those between; negative: more.
Split = tuple[int, int]
EVEN: Split = (0, 0)
# The columns that say which layers a chunk holds.
_CUT_BY = ("pp", "vpp", "first_stage_less_layers", "last_stage_less_layers", "schedule")
# Further rounds of one more layer on every chunk between, in search of the best split: heads of more layers are rare.
_ROUNDS = 16


def layers_between(columns: Columns, layers: int) -> IntColumn:
    """Layers of a chunk that is neither the first nor the last, rounded down where the split does not come out."""
    ends: IntColumn = columns["first_stage_less_layers"] + columns["last_stage_less_layers"]
    return (layers + ends) // (columns["pp"] * columns["vpp"])


def layers_of_chunk(plan: Plan, layers: int, chunk: int) -> range:
    """The layers of one chunk; where an even split does not come out, chunks differ by at most one layer."""
    first, last, chunks = plan.first_stage_less_layers, plan.last_stage_less_layers, plan.pp * plan.vpp
    total = layers + first + last
    start, end = (max(0, min(layers, turn * total // chunks - first)) for turn in (chunk, chunk + 1))
    return range(start if chunk > 0 else 0, end if chunk < chunks - 1 else layers)


@lru_cache(maxsize=256)
def _kinds_up_to(model: ModelSpec) -> FloatColumn:
    """How many of the first n layers are of each kind: kinds x (layers + 1)."""
    experts, windowed = layer_traits(model, np.arange(1, model.layers + 1))
    each = [(experts == (kind.experts > 0)) & (windowed == (kind.window > 0)) for _, kind in layer_kinds(model)]
    return np.pad(np.cumsum(each, axis=1, dtype=np.float64), ((0, 0), (1, 0)))


class KindsHeld(NamedTuple):
    """Layers of each kind (`layer_kinds`, in its order) in a pipeline rank, and of these in its first and in its last
    chunk: kinds x plans each."""

    rank: FloatColumn
    first_chunk: FloatColumn
    last_chunk: FloatColumn


def kinds_held(model: ModelSpec, columns: Mapping[str, Any], stage: Any, head: Any | None = None) -> KindsHeld:
    """Exact where the split comes out; else chunks hold fractions of layers, the rank the mean of all ranks on the
    first stage and the next whole number on the others. head: as many layers as the head counts for where a framework
    balances it, in ranks of one chunk. columns: of whole numbers or of floats. stage: a column of ranks."""
    rank = _kinds_of_chunk(model, columns, stage, 0, head)
    first, last = rank.copy(), rank.copy()
    for turn in range(1, int(np.max(columns["vpp"], initial=1)) if head is None else 1):
        some = np.flatnonzero(columns["vpp"] > turn)
        last[:, some] = _kinds_of_chunk(model, {name: columns[name][some] for name in _CUT_BY}, stage[some], turn)
        rank[:, some] += last[:, some]
    return KindsHeld(rank, first, last)


def _kinds_of_chunk(
    model: ModelSpec, columns: Mapping[str, Any], stage: Any, turn: int, head: Any | None = None
) -> FloatColumn:
    """Of one of the rank's chunks, counted from 0; 1 is the way back in a V (zbv)."""
    pp, chunks, layers = columns["pp"], columns["pp"] * columns["vpp"], model.layers
    if head is not None:
        # nanotron's stages: one is full once its cost is above its share.
        start, end = (np.ceil((layers + head) * edge / pp) for edge in (stage, stage + 1))
    else:
        folded = columns["schedule"] == SCHEDULES.index(Schedule.ZBV)
        chunk = np.where(folded, chunks - 1 - stage, stage + turn * pp) if turn == 1 else stage + turn * pp
        first = columns["first_stage_less_layers"]
        total = layers + first + columns["last_stage_less_layers"]
        more = np.where(stage > 0, -(-total // pp) - total / pp, 0) / columns["vpp"]
        start, end = chunk * total / chunks - first - more, (chunk + 1) * total / chunks - first
        start, end = np.where(chunk > 0, start, 0), np.where(chunk < chunks - 1, end, layers)
    counts, numbers = _kinds_up_to(model), np.arange(layers + 1)
    if len(counts) == 1:  # saves a quarter of the time
        held: FloatColumn = np.clip(end, 0, layers)[None] - np.clip(start, 0, layers)
        return held
    return np.stack([np.interp(end, numbers, count) - np.interp(start, numbers, count) for count in counts])


def computes_loss(columns: Mapping[str, Any], stage: Any) -> Any:
    """Whether a rank holds the pipeline's last chunk, which under zbv lies on the first. Whole numbers or floats."""
    folded = columns["schedule"] == SCHEDULES.index(Schedule.ZBV)
    return np.where(folded, stage == 0, stage == columns["pp"] - 1)


def loss_alone(model: ModelSpec, columns: Mapping[str, Any]) -> Any:
    """Whether the layers for further tokens lie in the chunk before the last, which holds the loss alone."""
    less = columns["last_stage_less_layers"] > layers_between(columns, model.layers)
    return less & (columns["pp"] > 1) & (model.mtp_layers > 0)


def predicts_further(model: ModelSpec, columns: Mapping[str, Any], stage: Any) -> Any:
    """Whether a rank holds the layers for further tokens."""
    return np.where(loss_alone(model, columns), stage == columns["pp"] - 2, computes_loss(columns, stage))


def stages_apart(model: ModelSpec, columns: Mapping[str, Any]) -> list[Any]:
    """The ranks among which the fullest and the slowest one are: the first, the second, with dense first layers the
    first one whose chunks lie behind them, that with layers for further tokens where it is another than the last, and
    the last. Those between hold as much, to a layer of another kind."""
    pp = columns["pp"]
    second, last = np.minimum(1, pp - 1), pp - 1
    apart = [np.zeros_like(pp), second]
    if model.dense_layers:
        first = columns["first_stage_less_layers"]
        each = np.maximum(1, layers_between(columns, model.layers))
        apart.append(np.clip(-(-(model.dense_layers + first) // each), second, last))
    if np.any(loss_alone(model, columns)):
        apart.append(np.maximum(0, pp - 2))
    return [*apart, last] if np.any(pp > 1) else apart[:1]


def split_of(sizes: Sequence[int], *, empty_ends: bool = False, loss_alone: bool = False) -> Split | None:
    """The split that makes chunks of these sizes; None where none does: chunks between that differ, or one without a
    layer. empty_ends: the first and the last may have none. loss_alone: the last but one has fewer than those
    between, with the layers for further tokens."""
    if len(sizes) == 1:
        return EVEN
    if loss_alone:
        most = max(sizes[1:-2], default=0)
        split = split_of([*sizes[:-2], most], empty_ends=empty_ends)
        return (split[0], 2 * most - sizes[-2]) if split and sizes[-2] < most and sizes[-1] == 0 else None
    between = set(sizes[1:-1]) or {max(sizes)}
    first, last = (max(between) - sizes[end] for end in (0, -1))
    fit = len(between) == 1 and min(between) > 0 and min(sizes) >= (0 if empty_ends else 1)
    return (first, last) if fit else None


def plain_split(split: Split, chunks: int) -> Split:
    """Of two ways to say the same the plan's: see the rules `split-needs-pp` and `two-chunks`."""
    if chunks == 1:
        return EVEN
    both = min(split) if chunks == 2 else 0
    return split[0] - both, split[1] - both


def head_layers(model: ModelSpec) -> float:
    """The time in layers, by their model FLOPs, of the head and of what predicts further tokens, a layer and the head
    again each; the embedding's look-up takes none."""
    further = model.mtp_layers
    head = 6.0 * model.vocab * model.hidden * (1 + further)
    return further + head * (model.layers + further) / (model.flops_per_token - head)


def splits_offered(model: ModelSpec, pp: int, vpp: int, able: Collection[Split] | None) -> list[Split]:
    """The even split, where it comes out, and the one whose slowest rank is the fastest, where that is another; the
    even one alone where none comes out or the layers are not known. able: what the training code can run; None: any."""
    if pp == 1 or not model.known:
        return [EVEN]
    head = head_layers(model)
    offered = list(_balanced(model.layers, pp, vpp, head)) if able is None else sorted(able)
    legal = [split for split in {EVEN: None, **dict.fromkeys(offered)} if _comes_out(model.layers, pp, vpp, split)]
    if not legal:
        return [EVEN]

    def cost(split: Split) -> tuple[float, int, float]:
        """Of equal ones the most even, then the one whose ends take the most alike."""
        first, last = split
        return round(_slowest(model.layers, pp, vpp, split, head), 6), first + last, abs(last - first - head)

    best = min(legal, key=cost)
    return [EVEN, best] if EVEN in legal and best != EVEN else [best]


def _balanced(layers: int, pp: int, vpp: int, head: float) -> Iterator[Split]:
    """For each sum of both that comes out the best split."""
    chunks = pp * vpp
    for ends in range(-layers % chunks, -layers % chunks + _ROUNDS * chunks, chunks):
        most = (layers + ends) // chunks - 1
        low, high = max(0, ends - most), min(ends, most)
        if chunks == 2:
            low = ends  # see the rule `two-chunks`: the first end is never the one with less to do
        elif pp > 2:
            low = max(low, min(high, ceil(head)))  # with ranks between, the head's slack is what counts
        if low <= high:
            last = min(high, max(low, round((ends + head) / 2)))
            yield ends - last, last


def _comes_out(layers: int, pp: int, vpp: int, split: Split) -> bool:
    between, rest = divmod(layers + sum(split), pp * vpp)
    return rest == 0 and between > max(split) and (pp * vpp > 2 or 0 in split)


def _slowest(layers: int, pp: int, vpp: int, split: Split, head: float) -> float:
    """The time of the slowest rank, in layers."""
    rank = (layers + sum(split)) / pp
    ends = max(rank - split[0], rank - split[1] + head)
    return max(rank, ends) if pp > 2 else ends
