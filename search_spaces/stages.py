"""Pipeline stages: the layers of each chunk, and the uneven splits that a space offers where its bounds name none.

A pipeline has pp * vpp chunks of b = (layers + first_stage_less_layers + last_stage_less_layers) / (pp * vpp) layers;
the first chunk holds first_stage_less_layers fewer, for the embedding, and the last one last_stage_less_layers fewer,
for the head. Both names are torchtitan's (torchtitan/config/job_config.py at v0.2.2). A remainder spread over the
stages, the other usual way, has the same slowest stage and no slack where the head is: it is not offered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from meshtune.search_spaces.columns import SCHEDULES, Columns, IntColumn
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan, Schedule

# Layers that the first and the last chunk hold fewer than those between.
Split = tuple[int, int]
EVEN: Split = (0, 0)
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
    start, end = (turn * total // chunks - first for turn in (chunk, chunk + 1))
    return range(max(0, start), min(layers, end))


def split_of(sizes: Sequence[int]) -> Split | None:
    """The split that makes chunks of these sizes; None where none does: chunks between that differ, or hold fewer than
    the first or the last, or an end without a layer."""
    if len(sizes) == 1:
        return EVEN
    between = set(sizes[1:-1]) or {max(sizes)}
    first, last = (max(between) - sizes[end] for end in (0, -1))
    return (first, last) if len(between) == 1 and min(first, last) >= 0 and min(sizes) > 0 else None


def plain_split(split: Split, chunks: int) -> Split:
    """Of two ways to say the same the plan's: see the rules `split-needs-pp` and `two-chunks`."""
    if chunks == 1:
        return EVEN
    both = min(split) if chunks == 2 else 0
    return split[0] - both, split[1] - both


def fewer_layers(columns: Mapping[str, Any], stage: Any) -> tuple[Any, Any]:
    """By how many layers the pipeline's first chunk and its last one are smaller, where this rank holds them, else 0.
    Under zbv the last chunk lies on the first rank. Columns of whole numbers or of floats."""
    folded = columns["schedule"] == SCHEDULES.index(Schedule.ZBV)
    at_end = np.where(folded, stage == 0, stage == columns["pp"] - 1)
    first = np.where(stage == 0, columns["first_stage_less_layers"], 0)
    return first, np.where(at_end, columns["last_stage_less_layers"], 0)


def head_layers(model: ModelSpec) -> float:
    """The head's time in layers, by their model FLOPs; the embedding's look-up takes none."""
    head = 6.0 * model.vocab * model.hidden
    return head * model.layers / (model.flops_per_token - head)


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
