"""Plans that surely run out of memory, since one that needs no more memory than they do already did.

Only rules that hold for every training code: with all else equal (accumulation follows from a fixed batch), a larger
micro-batch keeps more activations; a lower stage of ZeRO, where there is data parallelism, keeps more states; fewer
recomputed activations are more kept ones. That a plan *crashed* proves nothing, so only out-of-memory verdicts count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import RECOMPUTES, Columns, columns_of
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan, Recompute

# The more of its activations a plan computes again, the fewer it keeps.
KEPT = {Recompute.FULL: 0, Recompute.SELECTIVE: 1, Recompute.NONE: 2}
# A plan that differs in any other field is no witness. Accumulation only ever shrinks as the micro-batch grows.
LOOSE = ("micro_batch_size", "grad_accum_steps", "zero_stage", "recompute")
# ZeRO 2 and 3 hold buffers that 0 and 1 do not, so only stages that keep nothing of their own are compared.
WITHOUT_BUFFERS = 1


def surely_out_of_memory(columns: Columns, ran_out: Sequence[Plan]) -> npt.NDArray[np.bool_]:
    """True for each plan of `columns` that needs at least the memory of one of those that ran out."""
    doomed = np.zeros(len(columns["tp"]), dtype=np.bool_)
    if not ran_out:
        return doomed
    kept = np.array([KEPT[recompute] for recompute in RECOMPUTES])
    tried = columns_of(ran_out)
    alike = _alike(columns, tried)
    for row, same in enumerate(alike):
        micro_batch, stage = tried["micro_batch_size"][row], tried["zero_stage"][row]
        stages = columns["zero_stage"][same]
        lower = (stages == stage) | ((stages < stage) & (stage <= WITHOUT_BUFFERS))
        larger = columns["micro_batch_size"][same] >= micro_batch
        doomed[same] |= lower & larger & (kept[columns["recompute"][same]] >= kept[tried["recompute"][row]])
    return doomed


def _alike(columns: Columns, tried: Columns) -> list[npt.NDArray[np.int64]]:
    """For each of the tried plans: the rows that differ from it in nothing but what the rules compare."""
    both = {name: np.concatenate([columns[name], tried[name]]) for name in PLAN_FIELDS}
    both["batch"] = both["micro_batch_size"] * both["grad_accum_steps"]
    group = np.zeros(len(both["tp"]), dtype=np.int64)
    for name, column in both.items():
        if name not in LOOSE:
            values, codes = np.unique(column, return_inverse=True)
            _, group = np.unique(group * len(values) + codes, return_inverse=True)
    count = len(columns["tp"])
    order = np.argsort(group[:count], kind="stable")
    ends = np.searchsorted(group[:count][order], [group[count:], group[count:] + 1])
    return [order[begin:end] for begin, end in ends.T]
